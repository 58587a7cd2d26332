#include <fmt/format.h>

#include <algorithm>

#include "bench/driver.h"
#include "core/config.h"
#include "core/rng.h"
#include "methods/flops.h"
#include "runtime/run_bench.h"
#include "tensorcache/session.h"

namespace tensorcache::runtime {
namespace {

constexpr int64_t kShallow = 1024;
constexpr int64_t kFullDepth = 4096;
constexpr int64_t kBatch = 32;
constexpr int64_t kPiece = 4096;  // tokens between two reports of progress

using SharedModel = std::shared_ptr<const Model>;

CacheConfig With(CacheConfig cache, CacheMethod method, WriteRule rule = WriteRule::kOuter) {
  cache.method = method;
  cache.tensor_cache.write.rule = rule;
  cache.tensor_cache.address.normalize_keys = IsDelta(rule);  // random keys are too long for it
  return cache;
}

CacheConfig Associative(CacheConfig cache) {
  cache.method = CacheMethod::kTensorCache;
  cache.tensor_cache.Apply(MemoryDesign::kAssociative);
  return cache;
}

Result<SharedModel> Make(const RunBenchOptions& options, const CacheConfig& cache, WeightType weights, RingType ring) {
  return Model::Random(options.config, {.weights = weights, .ring = ring, .threads = options.threads, .cache = cache});
}

// Sessions are held by a failing call's Status until the measurement ends.
class Decoding {
 public:
  static Result<Decoding> Start(const SharedModel& model, int64_t context, const RunBenchOptions& options) {
    TC_ASSIGN_OR_RETURN(Session session, Session::Create(model));
    Decoding decoding(std::move(session));
    TC_RETURN_IF_ERROR(decoding.GoTo(context, options));
    return decoding;
  }

  // Reads random tokens up to position `context`.
  Status GoTo(int64_t context, const RunBenchOptions& options) {
    const int64_t first = session_.position();
    std::vector<int32_t> tokens;
    while (session_.position() < context) {
      tokens.resize(static_cast<size_t>(std::min(kPiece, context - session_.position())));
      for (int32_t& token : tokens) token = NextToken();
      TC_RETURN_IF_ERROR(session_.Prefill(tokens));
      if (options.progress) {
        options.progress(fmt::format("reading {} tokens", context),
                         static_cast<double>(session_.position() - first) / static_cast<double>(context - first));
      }
    }
    return OkStatus();
  }
  void Step() {
    if (status_.ok()) status_ = session_.Decode(NextToken());
    // A token is not decoded before somebody can choose the next one.
    if (status_.ok() && session_.logits().empty()) status_ = IoError("not enough memory for the logits");
  }
  const Status& status() const { return status_; }
  const Session& session() const { return session_; }
  Session& session() { return session_; }

 private:
  explicit Decoding(Session session) : session_(std::move(session)) {}
  int32_t NextToken() {
    return static_cast<int32_t>(rng_.Below(static_cast<uint64_t>(session_.model().config().vocab_size)));
  }

  Session session_;
  Status status_;
  Rng rng_{1};
};

double BytesOf(const Session& session) {
  return static_cast<double>(session.model().info().weight_bytes + session.state_bytes().total());
}

DecodeRow RowOf(const std::string& method, const Session& session, double seconds, double read_seconds, double read) {
  DecodeRow row{.method = method,
                .weights = session.model().options().weights,
                .ring = session.model().options().ring,
                .context = session.position(),
                .tokens_per_second = 1 / seconds,
                .bytes = BytesOf(session),
                .bandwidth = read / read_seconds};
  row.of_bandwidth = row.bytes / seconds / row.bandwidth;
  return row;
}

// Methods side by side at one context, one session each; all rows share one limit.
Status CompareMethods(const RunBenchOptions& options, WeightType weights, RingType ring,
                      const OnRow<DecodeRow>& on_row) {
  struct Entry {
    const char* name;
    CacheConfig cache;
  };
  const CacheConfig& base = options.config.cache;
  const std::vector<Entry> entries = {{"window", With(base, CacheMethod::kWindow)},
                                      {"tensor_cache outer", With(base, CacheMethod::kTensorCache)},
                                      {"tensor_cache delta", With(base, CacheMethod::kTensorCache, WriteRule::kDelta)},
                                      {"tensor_cache associative", Associative(base)}};
  std::vector<Decoding> decodings;
  for (const Entry& entry : entries) {
    TC_ASSIGN_OR_RETURN(const SharedModel model, Make(options, entry.cache, weights, ring));
    TC_ASSIGN_OR_RETURN(Decoding decoding, Decoding::Start(model, kShallow, options));
    decodings.push_back(std::move(decoding));
  }
  std::vector<std::function<void()>> runs;
  for (Decoding& decoding : decodings) runs.push_back([&decoding] { decoding.Step(); });
  const double read = BytesOf(decodings[1].session());
  const int threads = decodings[0].session().model().threads();
  runs.push_back([=] { bench::RunRead(static_cast<int64_t>(read), threads); });
  const std::vector<double> seconds =
      bench::Driver({}, options.seconds * static_cast<double>(runs.size())).MedianSeconds(runs);
  for (size_t i = 0; i < entries.size(); ++i) {
    TC_RETURN_IF_ERROR(decodings[i].status());
    DecodeRow row = RowOf(entries[i].name, decodings[i].session(), seconds[i], seconds.back(), read);
    row.context = kShallow;
    if (i > 0) {
      row.baseline = "window";
      row.to_baseline = seconds[0] / seconds[i];
    }
    on_row(row);
  }
  return OkStatus();
}

// One method at two depths.
Status CompareDepths(const RunBenchOptions& options, const std::string& name, CacheMethod method, int64_t depth,
                     const OnRow<DecodeRow>& on_row) {
  TC_ASSIGN_OR_RETURN(const SharedModel model,
                      Make(options, With(options.config.cache, method), WeightType::kFp32, RingType::kFp32));
  TC_ASSIGN_OR_RETURN(Decoding shallow, Decoding::Start(model, kShallow, options));
  TC_ASSIGN_OR_RETURN(Decoding deep, Decoding::Start(model, depth, options));
  const double read = BytesOf(deep.session());
  const int threads = model->threads();
  const std::vector<double> seconds =
      bench::Driver({}, options.seconds * 3)
          .MedianSeconds({[&] { shallow.Step(); }, [&] { deep.Step(); },
                          [&] { bench::RunRead(static_cast<int64_t>(read), threads); }});
  TC_RETURN_IF_ERROR(shallow.status());
  TC_RETURN_IF_ERROR(deep.status());
  DecodeRow row = RowOf(name, deep.session(), seconds[1], seconds[2], read);
  row.context = depth;
  row.baseline = fmt::format("itself at {}", kShallow);
  row.to_baseline = seconds[0] / seconds[1];
  on_row(row);
  return OkStatus();
}

Status BatchRow(const RunBenchOptions& options, WeightType weights, RingType ring, const OnRow<DecodeRow>& on_row) {
  const CacheConfig cache = With(options.config.cache, CacheMethod::kTensorCache);
  TC_ASSIGN_OR_RETURN(const SharedModel model, Make(options, cache, weights, ring));
  TC_ASSIGN_OR_RETURN(Decoding first, Decoding::Start(model, kShallow, options));
  std::vector<Session> sessions;
  std::vector<Session*> batch;
  for (int64_t i = 0; i < kBatch; ++i) {
    TC_ASSIGN_OR_RETURN(Session session, first.session().Fork());
    sessions.push_back(std::move(session));
  }
  for (Session& session : sessions) batch.push_back(&session);
  std::vector<float> logits(static_cast<size_t>(kBatch * model->config().vocab_size));
  Rng rng(2);
  Status status;
  const auto step = [&] {
    std::vector<int32_t> tokens(static_cast<size_t>(kBatch));
    for (int32_t& t : tokens) t = static_cast<int32_t>(rng.Below(static_cast<uint64_t>(model->config().vocab_size)));
    if (status.ok()) status = Session::DecodeBatch(batch, tokens);
    if (status.ok()) status = Session::BatchLogits(std::vector<const Session*>(batch.begin(), batch.end()), logits);
  };
  const int threads = model->threads();
  const auto weight_bytes = static_cast<double>(model->info().weight_bytes);
  const auto state_bytes = static_cast<double>(kBatch * sessions[0].state_bytes().total());
  const double read = std::min(weight_bytes + state_bytes, 6e8);
  const std::vector<double> seconds =
      bench::Driver({}, options.seconds * 3)
          .MedianSeconds(
              {step, [&] { bench::RunSgemms(threads); }, [&] { bench::RunRead(static_cast<int64_t>(read), threads); }});
  TC_RETURN_IF_ERROR(status);
  DecodeRow row = RowOf("tensor_cache outer", sessions[0], seconds[0], seconds[2], read);
  row.context = kShallow;
  row.sessions = kBatch;
  row.tokens_per_second = static_cast<double>(kBatch) / seconds[0];
  row.bytes = weight_bytes + state_bytes;
  row.of_bandwidth = row.bytes / seconds[0] / row.bandwidth;
  row.flops = ForwardFlops(model->config(), {.rows = kBatch, .tokens = 1, .past = kShallow, .supervised = kBatch});
  row.sgemm_rate = static_cast<double>(threads) * bench::SgemmFlops() / seconds[1];
  row.of_sgemm = row.flops / seconds[0] / row.sgemm_rate;
  row.of_both = (row.flops / row.sgemm_rate + state_bytes / row.bandwidth) / seconds[0];
  on_row(row);
  return OkStatus();
}

}  // namespace

ModelConfig Gpt130mConfig() {
  ModelConfig config;
  config.vocab_size = 50257;
  config.hidden_size = 768;
  config.intermediate_size = 3072;
  config.num_hidden_layers = 12;
  config.num_attention_heads = 12;
  config.num_key_value_heads = 12;
  config.cache.window = 512;
  return config;
}

Status BenchDecode(const RunBenchOptions& options, const OnRow<DecodeRow>& on_row) {
  TC_RETURN_IF_ERROR(CompareMethods(options, WeightType::kFp32, RingType::kFp32, on_row));
  TC_RETURN_IF_ERROR(CompareMethods(options, WeightType::kBf16, RingType::kBf16, on_row));
  TC_RETURN_IF_ERROR(CompareMethods(options, WeightType::kInt8, RingType::kBf16, on_row));
  TC_RETURN_IF_ERROR(BatchRow(options, WeightType::kFp32, RingType::kFp32, on_row));
  TC_RETURN_IF_ERROR(BatchRow(options, WeightType::kBf16, RingType::kBf16, on_row));
  TC_RETURN_IF_ERROR(CompareDepths(options, "full", CacheMethod::kFull, kFullDepth, on_row));
  return CompareDepths(options, "tensor_cache outer", CacheMethod::kTensorCache, options.depth, on_row);
}

Status BenchPrefill(const RunBenchOptions& options, const OnRow<PrefillRow>& on_row) {
  const CacheConfig& base = options.config.cache;
  for (const WeightType weights : {WeightType::kFp32, WeightType::kBf16, WeightType::kInt8}) {
    TC_ASSIGN_OR_RETURN(const SharedModel window,
                        Make(options, With(base, CacheMethod::kWindow), weights, RingType::kFp32));
    TC_ASSIGN_OR_RETURN(const SharedModel tensor_cache,
                        Make(options, With(base, CacheMethod::kTensorCache), weights, RingType::kFp32));
    const int64_t block = window->options().prefill_block;
    const int threads = window->threads();
    for (const int64_t context : {int64_t{0}, options.depth}) {
      if (context > 0 && weights != WeightType::kFp32) continue;
      TC_ASSIGN_OR_RETURN(Decoding a, Decoding::Start(window, std::min(context, 2 * kShallow), options));
      TC_ASSIGN_OR_RETURN(Decoding b, Decoding::Start(tensor_cache, context, options));
      Status status;
      const auto run = [&](Decoding& decoding) {
        if (context == 0) decoding.session().Clear();
        if (status.ok()) status = decoding.GoTo(decoding.session().position() + block, {});
      };
      const std::vector<double> seconds =
          bench::Driver({}, options.seconds * 3)
              .MedianSeconds({[&] { run(a); }, [&] { run(b); }, [&] { bench::RunSgemms(threads); }});
      TC_RETURN_IF_ERROR(status);
      const double rate = static_cast<double>(threads) * bench::SgemmFlops() / seconds[2];
      const StepSize size = {.rows = 1, .tokens = block, .past = context, .supervised = 1};
      const Decoding* decodings[] = {&a, &b};
      for (size_t i = 0; i < 2; ++i) {
        const ModelConfig& config = decodings[i]->session().model().config();
        on_row({.method = i == 0 ? "window" : "tensor_cache outer",
                .weights = weights,
                .block = block,
                .context = i == 0 ? std::min(context, 2 * kShallow) : context,
                .tokens_per_second = static_cast<double>(block) / seconds[i],
                .to_window = seconds[0] / seconds[i],
                .sgemm_rate = rate,
                .of_sgemm = ForwardFlops(config, size) / seconds[i] / rate});
      }
    }
  }
  return OkStatus();
}

}  // namespace tensorcache::runtime
