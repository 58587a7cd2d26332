// Decoding speed against context length.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "core/config.h"
#include "core/rng.h"
#include "core/statistics.h"
#include "experiments/experiments.h"
#include "experiments/methods.h"
#include "runtime/run_bench.h"
#include "tensorcache/session.h"

namespace tensorcache::experiments {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::array<int64_t, 6> kContexts = {1024, 2048, 4096, 8192, 16384, 32768};
constexpr int kRounds = 7;
// So that a round takes some 50 ms or more.
int TokensPerRound(bool quick) { return quick ? 200 : 6; }

// Tokens a second on a GPU, in the order of kAllMethods; the bounded methods are flat.
constexpr double kPublishedShort[] = {127, 115, 114, 74, 80};  // 1K
constexpr double kPublishedLong[] = {106, 115, 114, 74, 80};   // 32K

ModelConfig Shape(bool quick) {
  ModelConfig config = runtime::Gpt130mConfig();
  if (quick) {
    config.vocab_size = 4096;
    config.hidden_size = 256;
    config.intermediate_size = 1024;
    config.num_hidden_layers = 4;
    config.num_attention_heads = config.num_key_value_heads = 4;
  }
  return config;
}

// One method's session, which grows from context to context.
struct Stream {
  Session session;
  std::vector<double> seconds;  // a token, one a round
};

Status ReadUpTo(int64_t context, Rng& rng, Session& session) {
  std::vector<int32_t> tokens(static_cast<size_t>(std::max<int64_t>(0, context - session.position())));
  const auto vocabulary = static_cast<uint64_t>(session.model().config().vocab_size);
  for (int32_t& token : tokens) token = static_cast<int32_t>(rng.Below(vocabulary));
  return session.Prefill(tokens);
}

Status DecodeRound(int tokens, Stream& stream) {
  const auto start = Clock::now();
  for (int i = 0; i < tokens; ++i) {
    TC_RETURN_IF_ERROR(stream.session.Decode(i));
    // A token is not decoded before somebody can choose the next one.
    if (stream.session.logits().empty()) return IoError("not enough memory for the logits");
  }
  stream.seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count() / tokens);
  return OkStatus();
}

// The median of the rounds' own ratios: what disturbs a round disturbs its neighbours, too.
double RatioOfRounds(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> ratios;
  for (size_t i = 0; i < a.size(); ++i) ratios.push_back(a[i] / b[i]);
  return Median(ratios);
}

Result<std::vector<Stream>> OpenStreams(const ExperimentOptions& options) {
  std::vector<Stream> streams;
  for (const CacheMethod method : kAllMethods) {
    ModelConfig config = Shape(options.quick());
    config.cache.method = method;
    TC_ASSIGN_OR_RETURN(
        const auto model,
        Model::Random(config, {.weights = WeightType::kBf16, .ring = RingType::kBf16, .threads = options.threads}));
    TC_ASSIGN_OR_RETURN(Session session, Session::Create(model));
    streams.push_back({.session = std::move(session)});
  }
  return streams;
}

}  // namespace

Result<ExperimentResult> MeasureThroughput(const MeasureContext& context) {
  const bool quick = context.options.quick();
  const size_t contexts = quick ? 4 : kContexts.size();
  ExperimentResult result{
      .experiment = "throughput",
      .title = "Decoding speed against context",
      .paper = "Section 4.2, Figure 4",
      .setup = fmt::format(
          "{}, window 512, weights and window in bfloat16, one sequence, all CPU threads. The five methods "
          "decode in turn at each length; medians of {} rounds. Published: a GPU, where launching kernels, "
          "not memory, sets the pace.",
          quick ? "4 layers of width 256 (quick)" : "GPT-2 small's shape (130M parameters, random weights)", kRounds)};
  Table speed{.id = "speed", .title = "Decoded tokens a second", .row_title = "Context"};
  Table ratio{.id = "ratio", .title = "Speed to Window KV's", .row_title = "Context"};
  Figure figure{.id = "speed_by_context",
                .title = "Throughput against context",
                .note = "Tokens a second that one sequence decodes.",
                .x = {.title = "context", .unit = "tokens", .log = true},
                .y = {.title = "decoding", .unit = "tokens/s", .min = 0}};
  for (const CacheMethod method : kAllMethods) {
    speed.columns.push_back({.title = MethodTitle(method), .unit = "tokens/s", .digits = quick ? 0 : 1});
    ratio.columns.push_back({.title = MethodTitle(method), .digits = 2, .better = Better::kHigher});
    figure.series.push_back({.name = MethodTitle(method), .method = std::string(NameOf(method))});
  }
  TC_ASSIGN_OR_RETURN(std::vector<Stream> streams, OpenStreams(context.options));
  Rng rng(1);
  for (size_t c = 0; c < contexts; ++c) {
    for (size_t m = 0; m < streams.size(); ++m) {
      context.Tell(static_cast<double>((1 << c) * static_cast<int>(5 + m)) / static_cast<double>(10 << (contexts - 1)),
                   fmt::format("{} reads {} tokens", MethodTitle(kAllMethods[m]), kContexts[c]));
      streams[m].seconds.clear();
      TC_RETURN_IF_ERROR(ReadUpTo(kContexts[c], rng, streams[m].session));
    }
    for (int round = 0; round < kRounds; ++round) {
      for (Stream& stream : streams) TC_RETURN_IF_ERROR(DecodeRound(TokensPerRound(quick), stream));
    }
    Row speed_row{.label = ContextLabel(kContexts[c])}, ratio_row = speed_row;
    for (size_t m = 0; m < streams.size(); ++m) {
      const double seconds = Median(streams[m].seconds);
      Cell cell = Measured(1 / seconds), relative = Measured(RatioOfRounds(streams[1].seconds, streams[m].seconds));
      if (!quick && (kContexts[c] == 1024 || kContexts[c] == 32768)) {
        const double* published = kContexts[c] == 1024 ? kPublishedShort : kPublishedLong;
        cell = Beside(cell, published[m]);
        relative = Beside(relative, published[m] / published[1]);
      }
      figure.series[m].points.push_back({.x = static_cast<double>(kContexts[c]), .y = 1 / seconds});
      speed_row.cells.push_back(cell);
      ratio_row.cells.push_back(relative);
    }
    speed.rows.push_back(std::move(speed_row));
    ratio.rows.push_back(std::move(ratio_row));
  }
  const Row& first = speed.rows.front();
  const Row& last = speed.rows.back();
  result.findings.push_back(fmt::format(
      "From {} to {} tokens Full KV goes from {:.0f} to {:.0f} tokens a second, Tensor Cache from {:.0f} to {:.0f}.",
      first.label, last.label, *first.cells[0].value, *last.cells[0].value, *first.cells[4].value,
      *last.cells[4].value));
  result.findings.push_back(
      fmt::format("Tensor Cache decodes at {:.2f} of Window KV's speed at {} tokens; the paper reports about 0.70.",
                  *ratio.rows.back().cells[4].value, last.label));
  result.tables = {std::move(speed), std::move(ratio)};
  result.figures.push_back(std::move(figure));
  return result;
}

}  // namespace tensorcache::experiments
