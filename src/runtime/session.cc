#include "tensorcache/session.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <new>
#include <vector>

#include "core/check.h"
#include "kernels/norm/softmax_cross_entropy.h"
#include "runtime/cache_impl.h"
#include "runtime/model_impl.h"
#include "runtime/state_file.h"

namespace tensorcache {
namespace {

// Rows of logits that are alive at the same time.
constexpr int64_t kLogitRows = 128;

Status CheckTokens(std::span<const int32_t> tokens, int64_t vocab_size) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] >= 0 && tokens[i] < vocab_size) continue;
    return InvalidArgument(
        fmt::format("token {} (number {} of the text) is outside the vocabulary of {}", tokens[i], i, vocab_size));
  }
  return OkStatus();
}

// The largest magnitude tells, and as integers magnitudes compare without branches.
bool AllFinite(std::span<const float> x) {
  constexpr uint32_t kMagnitude = 0x7FFFFFFF, kInfinity = 0x7F800000;
  uint32_t largest = 0;
  for (const float value : x) largest = std::max(largest, std::bit_cast<uint32_t>(value) & kMagnitude);
  return largest < kInfinity;
}

}  // namespace

struct Session::Impl {
  std::shared_ptr<const Model> model;
  TwoLevelCache cache;
  std::vector<float> logits;    // empty at the start
  std::vector<int32_t> recent;  // at most kRecentTokens
  Status failure;               // what made the state useless

  const Model::Impl& network() const { return model->impl(); }

  Status CheckReady(std::span<const int32_t> tokens) const {
    TC_RETURN_IF_ERROR(failure);
    TC_RETURN_IF_ERROR(CheckRoom(static_cast<int64_t>(tokens.size())));
    return CheckTokens(tokens, model->config().vocab_size);
  }

  int64_t Room() const {
    const ModelConfig& config = model->config();
    if (config.position_embedding != PositionKind::kLearned) return std::numeric_limits<int64_t>::max();
    return std::max<int64_t>(0, config.max_position_embeddings - cache.position());
  }

  // Learned positions end, and with them the sequence.
  Status CheckRoom(int64_t tokens) const {
    if (tokens <= Room()) return OkStatus();
    return Unsupported(fmt::format(
        "the model has learned positions for {} tokens, and {} more than {} are too many; end the text there, "
        "or take a model with rotary embedding, which has no such end",
        model->config().max_position_embeddings, tokens, cache.position()));
  }

  void Remember(std::span<const int32_t> tokens) {
    recent.insert(recent.end(), tokens.begin(), tokens.end());
    const auto surplus = static_cast<int64_t>(recent.size()) - kRecentTokens;
    if (surplus > 0) recent.erase(recent.begin(), recent.begin() + surplus);
  }

  // After an error inside the layers some have moved on and some have not.
  Status Fail(const Status& status) {
    failure = Status(status.code(), fmt::format("{} (at token {}); clear the session or restore a saved one",
                                                status.message(), cache.position()));
    return failure;
  }
  Status CheckLogits() { return AllFinite(logits) ? OkStatus() : Fail(Diverged("the logits left the finite numbers")); }

  // Takes `tokens` through the model in blocks and calls `with_rows(pass, first token of the block)` after each; the logits
  // after the last token are kept.
  template <class F>
  Status Feed(std::span<const int32_t> tokens, F with_rows) {
    TC_RETURN_IF_ERROR(CheckReady(tokens));
    if (tokens.empty()) return OkStatus();
    const auto n = static_cast<int64_t>(tokens.size()), most = network().options.prefill_block;
    const int64_t blocks = (n + most - 1) / most, size = (n + blocks - 1) / blocks;
    Model::Impl::Turn turn(network());
    try {
      for (int64_t first = 0; first < n; first += size) {
        const std::span<const int32_t> block =
            tokens.subspan(static_cast<size_t>(first), static_cast<size_t>(std::min(size, n - first)));
        const runtime::SequenceTokens sequence{.cache = &cache, .tokens = block};
        if (const Status status = turn.pass().Run(std::span(&sequence, 1)); !status.ok()) return Fail(status);
        with_rows(turn, first, block);
        Remember(block);
      }
      logits.resize(static_cast<size_t>(model->config().vocab_size));
      turn.pass().Logits(turn.pass().rows() - 1, 1, logits.data(), model->config().vocab_size);
    } catch (const std::bad_alloc&) {
      return Fail(IoError("not enough memory; try a smaller prefill block"));
    }
    return CheckLogits();
  }
};

Session::Session(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Session::~Session() = default;
Session::Session(Session&&) noexcept = default;
Session& Session::operator=(Session&&) noexcept = default;

Result<Session> Session::Create(std::shared_ptr<const Model> model, const SessionOptions& options) {
  TwoLevelCache cache = model->impl().empty_cache->Fork();
  if (options.rope_ntk_factor != 0) {
    if (!(options.rope_ntk_factor >= 1 && options.rope_ntk_factor <= 1e6)) {
      return InvalidArgument(
          fmt::format("rope_ntk_factor is {}; it must be 1 to 1e6, or 0 for the model's", options.rope_ntk_factor));
    }
    TwoLevelCacheConfig config = cache.config();
    config.rope.ntk_factor = options.rope_ntk_factor;
    TC_ASSIGN_OR_RETURN(cache, TwoLevelCache::Create(config, model->impl().weights.memories));
  }
  return Session(std::unique_ptr<Impl>(new Impl{.model = std::move(model), .cache = std::move(cache)}));
}

Status Session::Prefill(std::span<const int32_t> tokens) {
  return impl_->Feed(tokens, [](Model::Impl::Turn&, int64_t, std::span<const int32_t>) {});
}

Status Session::Decode(int32_t token) { return Prefill(std::span(&token, 1)); }

Status Session::PrefillLogits(std::span<const int32_t> tokens, std::span<float> logits) {
  const int64_t V = impl_->model->config().vocab_size;
  if (logits.size() != tokens.size() * static_cast<size_t>(V)) {
    return InvalidArgument(fmt::format("{} tokens have {} logits; room for {} was given", tokens.size(),
                                       tokens.size() * static_cast<size_t>(V), logits.size()));
  }
  return impl_->Feed(tokens, [&](Model::Impl::Turn& turn, int64_t first, std::span<const int32_t>) {
    turn.pass().Logits(0, turn.pass().rows(), logits.data() + first * V, V);
  });
}

Status Session::Score(std::span<const int32_t> tokens, std::span<float> nll) {
  const int64_t V = impl_->model->config().vocab_size;
  if (nll.size() != tokens.size()) {
    return InvalidArgument(fmt::format("{} tokens, but room for {} scores", tokens.size(), nll.size()));
  }
  if (tokens.empty()) return OkStatus();
  TC_RETURN_IF_ERROR(impl_->CheckReady(tokens));
  const auto score = [&](const float* logits, int64_t rows, size_t first_target) {
    std::vector<int64_t> targets(tokens.begin() + static_cast<int64_t>(first_target),
                                 tokens.begin() + static_cast<int64_t>(first_target) + rows);
    impl_->network().pool.ParallelFor(rows, 1, [&](int64_t begin, int64_t end, int) {
      SoftmaxCrossEntropy({.rows = end - begin,
                           .width = V,
                           .x = logits + begin * V,
                           .x_stride = V,
                           .targets = targets.data() + begin,
                           .nll = nll.data() + first_target + begin});
    });
  };
  if (impl_->logits.empty()) {
    nll[0] = std::numeric_limits<float>::quiet_NaN();
  } else {
    Model::Impl::Turn turn(impl_->network());  // for its threads
    score(impl_->logits.data(), 1, 0);
  }
  return impl_->Feed(tokens, [&](Model::Impl::Turn& turn, int64_t first, std::span<const int32_t> block) {
    // Row i of the block predicts token first + i + 1; the text's last row predicts nothing of it.
    const int64_t n = std::min(static_cast<int64_t>(block.size()), static_cast<int64_t>(tokens.size()) - first - 1);
    for (int64_t row = 0; row < n; row += kLogitRows) {
      const int64_t rows = std::min(kLogitRows, n - row);
      float* logits = turn.workspace().Get(runtime::Workspace::kLogits, rows, V);
      turn.pass().Logits(row, rows, logits, V);
      score(logits, rows, static_cast<size_t>(first + row + 1));
    }
  });
}

Status Session::DecodeBatch(std::span<Session* const> sessions, std::span<const int32_t> tokens) {
  if (sessions.size() != tokens.size()) {
    return InvalidArgument(fmt::format("{} sessions and {} tokens", sessions.size(), tokens.size()));
  }
  if (sessions.empty()) return OkStatus();
  const std::shared_ptr<const Model>& model = sessions[0]->impl_->model;
  for (size_t i = 0; i < sessions.size(); ++i) {
    if (sessions[i]->impl_->model != model) return InvalidArgument("the sessions of a batch must be of one model");
    TC_RETURN_IF_ERROR(sessions[i]->impl_->CheckReady(tokens.subspan(i, 1)));
    if (std::count(sessions.begin(), sessions.end(), sessions[i]) > 1) {
      return InvalidArgument("a session is twice in the batch");
    }
  }
  const int64_t V = model->config().vocab_size;
  Model::Impl::Turn turn(model->impl());
  Status first_failure;
  // Not more rows at a time than the products of single rows take, which do not depend on their number.
  for (size_t begin = 0; begin < sessions.size(); begin += kSmallBatch) {
    const size_t count = std::min<size_t>(kSmallBatch, sessions.size() - begin);
    std::vector<runtime::SequenceTokens> sequences;
    for (size_t i = begin; i < begin + count; ++i) {
      sequences.push_back({.cache = &sessions[i]->impl_->cache, .tokens = tokens.subspan(i, 1)});
    }
    const Status status = turn.pass().Run(sequences);
    float* logits = turn.workspace().Get(runtime::Workspace::kLogits, static_cast<int64_t>(count), V);
    if (status.ok()) turn.pass().Logits(0, static_cast<int64_t>(count), logits, V);
    std::vector<Status> outcomes(count);
    model->impl().pool.ParallelFor(static_cast<int64_t>(count), 1, [&](int64_t first, int64_t last, int) {
      for (int64_t i = first; i < last; ++i) {
        Impl& session = *sessions[begin + static_cast<size_t>(i)]->impl_;
        if (status.ok()) {
          session.logits.assign(logits + i * V, logits + (i + 1) * V);
          session.Remember(tokens.subspan(begin + static_cast<size_t>(i), 1));
        }
        outcomes[static_cast<size_t>(i)] = status.ok() ? session.CheckLogits() : session.Fail(status);
      }
    });
    for (const Status& outcome : outcomes) {
      if (first_failure.ok()) first_failure = outcome;
    }
  }
  return first_failure;
}

std::span<const float> Session::logits() const { return impl_->logits; }
std::span<const int32_t> Session::recent() const { return impl_->recent; }
int64_t Session::room() const { return impl_->Room(); }
int64_t Session::position() const { return impl_->cache.position(); }
const Model& Session::model() const { return *impl_->model; }
const TwoLevelCache& Session::cache() const { return impl_->cache; }
CacheMemory Session::memory() const { return impl_->cache.memory(); }

void Session::Clear() {
  impl_->cache.Clear();
  impl_->logits.clear();
  impl_->recent.clear();
  impl_->failure = OkStatus();
}

Session Session::Fork() const {
  return Session(std::unique_ptr<Impl>(new Impl{.model = impl_->model,
                                                .cache = impl_->cache.Fork(),
                                                .logits = impl_->logits,
                                                .recent = impl_->recent,
                                                .failure = impl_->failure}));
}

// ----- files: the number of recent tokens, room for all of them, the logits (or zeros), the cache -----------------

namespace {

runtime::StateOwner OwnerOf(const Model& model, const TwoLevelCache::Impl& cache) {
  return {.kind = runtime::StateKind::kSession, .config = cache.Fingerprint(), .model = model.fingerprint()};
}

}  // namespace

Status Session::Save(const std::string& path) const {
  TC_RETURN_IF_ERROR(impl_->failure);
  TC_ASSIGN_OR_RETURN(runtime::StateWriter writer,
                      runtime::StateWriter::Create(path, OwnerOf(*impl_->model, *impl_->cache.impl_)));
  std::vector<int32_t> recent = impl_->recent;
  writer.Put(static_cast<int64_t>(recent.size()));
  recent.resize(kRecentTokens);
  writer.Put(std::as_bytes(std::span(recent)));
  std::vector<float> logits = impl_->logits;
  logits.resize(static_cast<size_t>(impl_->model->config().vocab_size));
  writer.Put(std::as_bytes(std::span(logits)));
  impl_->cache.impl_->Put(writer);
  return writer.Commit();
}

Result<Session> Session::Restore(std::shared_ptr<const Model> model, const std::string& path,
                                 const SessionOptions& options) {
  TC_ASSIGN_OR_RETURN(Session session, Create(std::move(model), options));
  Impl& impl = *session.impl_;
  TC_ASSIGN_OR_RETURN(runtime::StateReader reader,
                      runtime::StateReader::Open(path, OwnerOf(*impl.model, *impl.cache.impl_)));
  int64_t recent = 0;
  TC_RETURN_IF_ERROR(reader.Get(&recent));
  if (recent < 0 || recent > kRecentTokens) return Corrupt(fmt::format("{}: has {} recent tokens", path, recent));
  impl.recent.resize(kRecentTokens);
  TC_RETURN_IF_ERROR(reader.Get(std::as_writable_bytes(std::span(impl.recent))));
  impl.recent.resize(static_cast<size_t>(recent));
  impl.logits.resize(static_cast<size_t>(impl.model->config().vocab_size));
  TC_RETURN_IF_ERROR(reader.Get(std::as_writable_bytes(std::span(impl.logits))));
  TC_RETURN_IF_ERROR(impl.cache.impl_->Get(reader));
  TC_RETURN_IF_ERROR(reader.ExpectEnd());
  if (session.position() == 0) impl.logits.clear();
  return session;
}

}  // namespace tensorcache
