#include "tensorcache/session.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <new>
#include <vector>

#include "core/no_throw.h"
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
  // (E): what the output matrix makes the logits from; empty at the start, and in a session restored from a file of an old version,
  // which has the logits themselves.
  std::vector<float> hidden;
  mutable std::vector<float> logits;  // made when somebody asks; empty: not made
  std::vector<int32_t> recent;        // at most kRecentTokens
  Status failure;                     // what made the state useless

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

  // The block went through the layers; row `row` of the pass is its last token.
  Status Finish(std::span<const int32_t> block, runtime::ForwardPass& pass, int64_t row) {
    recent.insert(recent.end(), block.begin(), block.end());
    const auto surplus = static_cast<int64_t>(recent.size()) - kRecentTokens;
    if (surplus > 0) recent.erase(recent.begin(), recent.begin() + surplus);
    logits = {};  // freed: sessions that wait are small
    hidden.resize(static_cast<size_t>(model->config().hidden_size));
    pass.Hidden(row, 1, hidden.data());
    return AllFinite(hidden) ? OkStatus() : Fail(Diverged("the model's output left the finite numbers"));
  }

  // After an error inside the layers some have moved on and some have not.
  Status Fail(const Status& status) {
    try {
      failure = Status(status.code(), fmt::format("{} (at token {}); clear the session or restore a saved one",
                                                  status.message(), cache.position()));
      return failure;
    } catch (const std::bad_alloc&) {  // not even for the words
      failure = Status(status.code(), "");
      return Status(status.code(), "");
    }
  }

  // The logits after the last token; there is one. Throws std::bad_alloc.
  void MakeLogits() const {
    if (!logits.empty()) return;
    std::vector<float> made(static_cast<size_t>(model->config().vocab_size));
    Model::Impl::Turn turn(network());
    turn.pass().Head(hidden.data(), 1, made.data(), model->config().vocab_size);
    logits = std::move(made);
  }

  // Takes `tokens` through the model in blocks and calls `with_rows(turn, first token of the block, block)` after each.
  template <class F>
  Status Feed(std::span<const int32_t> tokens, F with_rows) {
    TC_RETURN_IF_ERROR(CheckReady(tokens));
    if (tokens.empty()) return OkStatus();
    const auto n = static_cast<int64_t>(tokens.size()), most = network().options.prefill_block;
    const int64_t blocks = (n + most - 1) / most, size = (n + blocks - 1) / blocks;
    try {
      Model::Impl::Turn turn(network());
      for (int64_t first = 0; first < n; first += size) {
        const std::span<const int32_t> block =
            tokens.subspan(static_cast<size_t>(first), static_cast<size_t>(std::min(size, n - first)));
        const runtime::SequenceTokens sequence{.cache = &cache, .tokens = block};
        if (const Status status = turn.pass().Run(std::span(&sequence, 1)); !status.ok()) return Fail(status);
        with_rows(turn, first, block);
        TC_RETURN_IF_ERROR(Finish(block, turn.pass(), turn.pass().rows() - 1));
      }
    } catch (...) {
      return Fail(StatusOfException("read tokens (a smaller prefill block takes less)"));
    }
    return OkStatus();
  }

  Status Score(std::span<const int32_t> tokens, std::span<float> nll);
};

namespace {

Status NoSession() { return InvalidArgument("a null session, or one that was moved from"); }

}  // namespace

Session::Session(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Session::~Session() = default;
Session::Session(Session&&) noexcept = default;
Session& Session::operator=(Session&&) noexcept = default;

Result<Session> Session::Create(std::shared_ptr<const Model> model, const SessionOptions& options) {
  if (model == nullptr) return InvalidArgument("a session needs a model; this one is null");
  if (options.rope_ntk_factor != 0 && !(options.rope_ntk_factor >= 1 && options.rope_ntk_factor <= 1e6)) {
    return InvalidArgument(
        fmt::format("rope_ntk_factor is {}; it must be 1 to 1e6, or 0 for the model's", options.rope_ntk_factor));
  }
  return NoThrow("make a session", [&]() -> Result<Session> {
    TC_ASSIGN_OR_RETURN(TwoLevelCache cache, model->impl().empty_cache->Fork());
    if (options.rope_ntk_factor != 0) {
      TwoLevelCacheConfig config = cache.config();
      config.rope.ntk_factor = options.rope_ntk_factor;
      TC_ASSIGN_OR_RETURN(cache, TwoLevelCache::Create(config, model->impl().weights.memories));
    }
    return Session(std::unique_ptr<Impl>(new Impl{.model = std::move(model), .cache = std::move(cache)}));
  });
}

Status Session::Prefill(std::span<const int32_t> tokens) {
  if (impl_ == nullptr) return NoSession();
  return NoThrow("read tokens",
                 [&] { return impl_->Feed(tokens, [](Model::Impl::Turn&, int64_t, std::span<const int32_t>) {}); });
}

Status Session::Decode(int32_t token) { return Prefill(std::span(&token, 1)); }

Status Session::PrefillLogits(std::span<const int32_t> tokens, std::span<float> logits) {
  if (impl_ == nullptr) return NoSession();
  const int64_t V = impl_->model->config().vocab_size;
  if (logits.size() != tokens.size() * static_cast<size_t>(V)) {
    return InvalidArgument(fmt::format("{} tokens have {} logits; room for {} was given", tokens.size(),
                                       tokens.size() * static_cast<size_t>(V), logits.size()));
  }
  return NoThrow("read tokens", [&] {
    return impl_->Feed(tokens, [&](Model::Impl::Turn& turn, int64_t first, std::span<const int32_t>) {
      turn.pass().Logits(0, turn.pass().rows(), logits.data() + first * V, V);
    });
  });
}

Status Session::Score(std::span<const int32_t> tokens, std::span<float> nll) {
  if (impl_ == nullptr) return NoSession();
  return NoThrow("score tokens", [&] { return impl_->Score(tokens, nll); });
}

Status Session::Impl::Score(std::span<const int32_t> tokens, std::span<float> nll) {
  const int64_t V = model->config().vocab_size;
  if (nll.size() != tokens.size()) {
    return InvalidArgument(fmt::format("{} tokens, but room for {} scores", tokens.size(), nll.size()));
  }
  if (tokens.empty()) return OkStatus();
  TC_RETURN_IF_ERROR(CheckReady(tokens));
  const auto score = [&](const float* rows_of_logits, int64_t rows, size_t first_target) {
    std::vector<int64_t> targets(tokens.begin() + static_cast<int64_t>(first_target),
                                 tokens.begin() + static_cast<int64_t>(first_target) + rows);
    network().pool.ParallelFor(rows, 1, [&](int64_t begin, int64_t end, int) {
      SoftmaxCrossEntropy({.rows = end - begin,
                           .width = V,
                           .x = rows_of_logits + begin * V,
                           .x_stride = V,
                           .targets = targets.data() + begin,
                           .nll = nll.data() + first_target + begin});
    });
  };
  if (cache.position() == 0) {
    nll[0] = std::numeric_limits<float>::quiet_NaN();
  } else {
    MakeLogits();
    const Model::Impl::Turn turn(network());  // for its threads
    score(logits.data(), 1, 0);
  }
  return Feed(tokens, [&](Model::Impl::Turn& turn, int64_t first, std::span<const int32_t> block) {
    // Row i of the block predicts token first + i + 1; the text's last row predicts nothing of it.
    const int64_t n = std::min(static_cast<int64_t>(block.size()), static_cast<int64_t>(tokens.size()) - first - 1);
    for (int64_t row = 0; row < n; row += kLogitRows) {
      const int64_t rows = std::min(kLogitRows, n - row);
      float* made = turn.workspace().Get(runtime::Workspace::kLogits, rows, V);
      turn.pass().Logits(row, rows, made, V);
      score(made, rows, static_cast<size_t>(first + row + 1));
    }
  });
}

// The sessions' one model, in *model.
Status Session::CheckBatch(std::span<const Session* const> sessions, const Model** model) {
  std::vector<const Session*> seen(sessions.begin(), sessions.end());
  std::sort(seen.begin(), seen.end());
  for (size_t i = 0; i < seen.size(); ++i) {
    if (seen[i] == nullptr || seen[i]->impl_ == nullptr) return NoSession();
    if (i > 0 && seen[i] == seen[i - 1]) return InvalidArgument("a session is twice in the batch");
    if (seen[i]->impl_->model != seen[0]->impl_->model) {
      return InvalidArgument("the sessions of a batch must be of one model");
    }
  }
  *model = seen[0]->impl_->model.get();
  return OkStatus();
}

Status Session::DecodeBatch(std::span<Session* const> sessions, std::span<const int32_t> tokens) {
  if (sessions.size() != tokens.size()) {
    return InvalidArgument(fmt::format("{} sessions and {} tokens", sessions.size(), tokens.size()));
  }
  if (sessions.empty()) return OkStatus();
  size_t begin = 0;
  Status failure;
  try {
    const Model* model = nullptr;
    TC_RETURN_IF_ERROR(CheckBatch(sessions, &model));
    for (size_t i = 0; i < sessions.size(); ++i) {
      TC_RETURN_IF_ERROR(sessions[i]->impl_->CheckReady(tokens.subspan(i, 1)));
    }
    Model::Impl::Turn turn(model->impl());
    // Not more rows at a time than the products of single rows take, which do not depend on their number.
    for (; begin < sessions.size(); begin += kSmallBatch) {
      const size_t count = std::min<size_t>(kSmallBatch, sessions.size() - begin);
      const Status status = DecodeFew(sessions.subspan(begin, count), tokens.subspan(begin, count), turn.pass());
      if (failure.ok()) failure = status;
    }
  } catch (...) {
    failure = StatusOfException("decode a batch");
    for (Session* session : sessions.subspan(begin)) {
      if (session != nullptr && session->impl_ != nullptr) (void)session->impl_->Fail(failure);
    }
  }
  return failure;
}

Status Session::DecodeFew(std::span<Session* const> sessions, std::span<const int32_t> tokens,
                          runtime::ForwardPass& pass) {
  std::vector<runtime::SequenceTokens> sequences;
  for (size_t i = 0; i < sessions.size(); ++i) {
    sequences.push_back({.cache = &sessions[i]->impl_->cache, .tokens = tokens.subspan(i, 1)});
  }
  const Status status = pass.Run(sequences);
  Status failure;
  for (size_t i = 0; i < sessions.size(); ++i) {
    Impl& session = *sessions[i]->impl_;
    const Status outcome =
        status.ok() ? session.Finish(tokens.subspan(i, 1), pass, static_cast<int64_t>(i)) : session.Fail(status);
    if (failure.ok()) failure = outcome;
  }
  return failure;
}

Status Session::BatchLogits(std::span<const Session* const> sessions, std::span<float> logits) {
  if (sessions.empty()) return OkStatus();
  return NoThrow("make logits", [&]() -> Status {
    const Model* model = nullptr;
    TC_RETURN_IF_ERROR(CheckBatch(sessions, &model));
    const auto E = static_cast<size_t>(model->config().hidden_size),
               V = static_cast<size_t>(model->config().vocab_size);
    if (logits.size() != sessions.size() * V) {
      return InvalidArgument(fmt::format("{} sessions have {} logits; room for {} was given", sessions.size(),
                                         sessions.size() * V, logits.size()));
    }
    std::vector<float> hidden(sessions.size() * E);
    for (size_t i = 0; i < sessions.size(); ++i) {
      const Impl& session = *sessions[i]->impl_;
      TC_RETURN_IF_ERROR(session.failure);
      if (session.cache.position() == 0) return InvalidArgument("a session that has read nothing has no logits");
      std::copy(session.hidden.begin(), session.hidden.end(), hidden.begin() + static_cast<std::ptrdiff_t>(i * E));
    }
    Model::Impl::Turn turn(model->impl());
    for (size_t begin = 0; begin < sessions.size(); begin += kSmallBatch) {
      const size_t count = std::min<size_t>(kSmallBatch, sessions.size() - begin);
      turn.pass().Head(hidden.data() + begin * E, static_cast<int64_t>(count), logits.data() + begin * V,
                       static_cast<int64_t>(V));
    }
    for (size_t i = 0; i < sessions.size(); ++i) {  // restored from an old file: nothing but the logits is known
      const Impl& session = *sessions[i]->impl_;
      if (session.hidden.empty())
        std::copy(session.logits.begin(), session.logits.end(), logits.begin() + static_cast<std::ptrdiff_t>(i * V));
    }
    return OkStatus();
  });
}

std::span<const float> Session::logits() const {
  if (impl_ == nullptr || !impl_->failure.ok() || position() == 0) return {};
  const Status made = NoThrow("make logits", [&] {
    impl_->MakeLogits();
    return OkStatus();
  });
  if (!made.ok()) return {};
  return impl_->logits;
}

std::span<const int32_t> Session::recent() const {
  if (impl_ == nullptr) return {};
  return impl_->recent;
}
int64_t Session::room() const { return impl_ == nullptr ? 0 : impl_->Room(); }
int64_t Session::position() const { return impl_ == nullptr ? 0 : impl_->cache.position(); }
const Model& Session::model() const { return *impl_->model; }
const TwoLevelCache& Session::cache() const { return impl_->cache; }
StateBytes Session::state_bytes() const { return impl_ == nullptr ? StateBytes() : impl_->cache.state_bytes(); }

void Session::Clear() {
  if (impl_ == nullptr) return;
  impl_->cache.Clear();
  impl_->hidden.clear();
  impl_->logits = {};
  impl_->recent.clear();
  impl_->failure = OkStatus();
}

Result<Session> Session::Fork() const {
  if (impl_ == nullptr) return NoSession();
  return NoThrow("fork a session", [&]() -> Result<Session> {
    TC_ASSIGN_OR_RETURN(TwoLevelCache cache, impl_->cache.Fork());
    return Session(
        std::unique_ptr<Impl>(new Impl{.model = impl_->model,
                                       .cache = std::move(cache),
                                       .hidden = impl_->hidden,
                                       .logits = impl_->hidden.empty() ? impl_->logits : std::vector<float>(),
                                       .recent = impl_->recent,
                                       .failure = impl_->failure}));
  });
}

// ----- states: the number of recent tokens and room for all of them; what follows the last token; the cache ---------

namespace {

// What a state has of the last token. States of version 2 have the logits, without saying so.
enum LastKind : int64_t { kNothing = 0, kHidden = 1, kLogits = 2 };

}  // namespace

Status Session::Put(runtime::StateWriter& writer) const {
  std::vector<int32_t> recent = impl_->recent;
  writer.Put(static_cast<int64_t>(recent.size()));
  recent.resize(kRecentTokens);
  writer.Put(std::as_bytes(std::span(recent)));
  const bool only_logits = impl_->hidden.empty() && position() > 0;
  std::vector<float> last = only_logits ? impl_->logits : impl_->hidden;
  if (position() == 0) last.assign(static_cast<size_t>(impl_->model->config().hidden_size), 0);
  writer.Put(static_cast<int64_t>(position() == 0 ? kNothing : only_logits ? kLogits : kHidden));
  writer.Put(std::as_bytes(std::span(last)));
  return impl_->cache.impl_->Put(writer);
}

Status Session::Get(runtime::StateReader& reader) {
  Impl& impl = *impl_;
  int64_t recent = 0, last = kLogits;
  TC_RETURN_IF_ERROR(reader.Get(&recent));
  if (recent < 0 || recent > kRecentTokens) {
    return Corrupt(fmt::format("{}: has {} recent tokens", reader.path(), recent));
  }
  impl.recent.resize(kRecentTokens);
  TC_RETURN_IF_ERROR(reader.Get(std::as_writable_bytes(std::span(impl.recent))));
  impl.recent.resize(static_cast<size_t>(recent));
  if (!CheckTokens(impl.recent, impl.model->config().vocab_size).ok()) {
    return Corrupt(fmt::format("{}: has recent tokens outside the vocabulary", reader.path()));
  }
  if (reader.version() > runtime::kLogitsVersion) TC_RETURN_IF_ERROR(reader.Get(&last));
  if (last < kNothing || last > kLogits) return Corrupt(fmt::format("{}: is of an unknown kind", reader.path()));
  std::vector<float>& numbers = last == kLogits ? impl.logits : impl.hidden;
  const ModelConfig& config = impl.model->config();
  numbers.resize(static_cast<size_t>(last == kLogits ? config.vocab_size : config.hidden_size));
  TC_RETURN_IF_ERROR(reader.Get(std::as_writable_bytes(std::span(numbers))));
  TC_ASSIGN_OR_RETURN(impl.cache.impl_->layers, impl.cache.impl_->Get(reader));
  TC_RETURN_IF_ERROR(reader.ExpectEnd());
  if (position() == 0) {
    impl.logits.clear();
    impl.hidden.clear();
  } else if (last == kNothing) {
    return Corrupt(fmt::format("{}: has tokens, but not what follows them", reader.path()));
  }
  return OkStatus();
}

Status Session::Save(const std::string& path, bool durable) const {
  if (impl_ == nullptr) return NoSession();
  TC_RETURN_IF_ERROR(impl_->failure);
  return NoThrow("save a session", [&]() -> Status {
    const runtime::StateOwner owner =
        impl_->cache.impl_->Owner(runtime::StateKind::kSession, impl_->model->fingerprint());
    TC_ASSIGN_OR_RETURN(runtime::StateWriter writer, runtime::StateWriter::Create(path, owner, durable));
    TC_RETURN_IF_ERROR(Put(writer));
    return writer.Commit();
  });
}

Result<std::vector<std::byte>> Session::Serialize() const {
  if (impl_ == nullptr) return NoSession();
  TC_RETURN_IF_ERROR(impl_->failure);
  return NoThrow("save a session", [&]() -> Result<std::vector<std::byte>> {
    std::vector<std::byte> bytes;
    runtime::StateWriter writer = runtime::StateWriter::ToBytes(
        &bytes, impl_->cache.impl_->Owner(runtime::StateKind::kSession, impl_->model->fingerprint()));
    TC_RETURN_IF_ERROR(Put(writer));
    TC_RETURN_IF_ERROR(writer.Commit());
    return bytes;
  });
}

template <class Open>
Result<Session> Session::Read(std::shared_ptr<const Model> model, const SessionOptions& options, const Open& open) {
  TC_ASSIGN_OR_RETURN(Session session, Create(std::move(model), options));
  Impl& impl = *session.impl_;
  return NoThrow("restore a session", [&]() -> Result<Session> {
    TC_ASSIGN_OR_RETURN(runtime::StateReader reader,
                        open(impl.cache.impl_->Owner(runtime::StateKind::kSession, impl.model->fingerprint())));
    TC_RETURN_IF_ERROR(session.Get(reader));
    return std::move(session);
  });
}

Result<Session> Session::Restore(std::shared_ptr<const Model> model, const std::string& path,
                                 const SessionOptions& options) {
  return Read(std::move(model), options,
              [&](const runtime::StateOwner& owner) { return runtime::StateReader::Open(path, owner); });
}

Result<Session> Session::Deserialize(std::shared_ptr<const Model> model, std::span<const std::byte> bytes,
                                     const SessionOptions& options) {
  return Read(std::move(model), options, [&](const runtime::StateOwner& owner) {
    return runtime::StateReader::FromBytes(bytes, "the bytes of a session", owner);
  });
}

}  // namespace tensorcache
