// One text that a model reads and continues.
//
//   auto model = Model::Load("checkpoint");
//   auto session = Session::Create(*model);
//   session->Prefill(prompt);                             // many tokens, in parallel
//   while (...) session->Decode(Sample(session->logits()));  // one at a time
//
// Unless the cache's method is full, a session has the same size after any number of tokens, and so has its file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tensorcache/cache.h"
#include "tensorcache/model.h"
#include "tensorcache/status.h"

namespace tensorcache {

namespace runtime {
class ForwardPass;
class StateReader;
class StateWriter;
}  // namespace runtime

struct SessionOptions {
  // NTK-aware scaling of the rotary embedding, for a text this many times the length the model was trained on; 0: the model's
  // own (rope_ntk_factor of its config).
  double rope_ntk_factor = 0;
};

// A session that was moved from is empty: calls that can fail do, and there is no model() or cache() to ask for.
// Different sessions may be used by different threads at the same time, a single one by one thread at a time. After kDiverged
// (numbers left the finite range) a session refuses to go on until it is cleared.
class Session {
 public:
  // Tokens that recent() reaches back.
  static constexpr int64_t kRecentTokens = 1024;

  static Result<Session> Create(std::shared_ptr<const Model> model, const SessionOptions& options = {});
  ~Session();
  Session(Session&&) noexcept;
  Session& operator=(Session&&) noexcept;

  // The next tokens of the text, of any number: any split gives the same logits, up to rounding. A token outside the
  // vocabulary is an error, and nothing has happened then.
  Status Prefill(std::span<const int32_t> tokens);
  Status Decode(int32_t token);
  // One token for each of many different sessions of one model: weights are read once for all. The logits of a session do not
  // depend on its company.
  static Status DecodeBatch(std::span<Session* const> sessions, std::span<const int32_t> tokens);
  // The logits of many different sessions of one model, (sessions, vocab_size), each as logits() gives them: the output matrix is
  // read once for all.
  static Status BatchLogits(std::span<const Session* const> sessions, std::span<float> logits);
  // Prefill that also tells, for each token, the negative log of the probability the model gave it (natural log). The first
  // token of a text was not predicted: NaN.
  Status Score(std::span<const int32_t> tokens, std::span<float> nll);
  // Prefill that also writes the logits after each token: (tokens, vocab_size).
  Status PrefillLogits(std::span<const int32_t> tokens, std::span<float> logits);

  // After the last token; empty at the start, and if there is no memory for them. Made when first asked for, and valid until the
  // session goes on. A session that nobody asks keeps a vector of the model's width instead, which a vocabulary exceeds.
  std::span<const float> logits() const;
  // The last tokens, oldest first, at most kRecentTokens.
  std::span<const int32_t> recent() const;
  // Tokens read.
  int64_t position() const;
  // How many more tokens it can read: any number (INT64_MAX), but for models with learned positions.
  int64_t room() const;
  const Model& model() const;
  const TwoLevelCache& cache() const;
  // Bytes of the cache.
  StateBytes state_bytes() const;

  // Back to the start of a text.
  void Clear();
  // An independent copy; cheap (see TwoLevelCache::Fork).
  Result<Session> Fork() const;

  // To and from a checksummed file. A restored session goes on bit for bit like the saved one, given the same options.
  // Refuses, with the reason, files that are damaged, of another version, another model or another cache. Without
  // `durable`, saving does not wait for the disk (18 of 63 ms for 40 MB: GPT-2 small's shape, window 512, ext4 on a
  // virtual disk): the file is whole after a crash of the program, but one of the machine may cost it.
  Status Save(const std::string& path, bool durable = true) const;
  static Result<Session> Restore(std::shared_ptr<const Model> model, const std::string& path,
                                 const SessionOptions& options = {});
  // The same bytes in memory, to be kept or sent anywhere.
  Result<std::vector<std::byte>> Serialize() const;
  static Result<Session> Deserialize(std::shared_ptr<const Model> model, std::span<const std::byte> bytes,
                                     const SessionOptions& options = {});

 private:
  struct Impl;
  explicit Session(std::unique_ptr<Impl> impl);
  static Status CheckBatch(std::span<const Session* const> sessions, const Model** model);
  static Status DecodeFew(std::span<Session* const> sessions, std::span<const int32_t> tokens,
                          runtime::ForwardPass& pass);
  Status Put(runtime::StateWriter& writer) const;
  Status Get(runtime::StateReader& reader);
  template <class Open>
  static Result<Session> Read(std::shared_ptr<const Model> model, const SessionOptions& options, const Open& open);

  std::unique_ptr<Impl> impl_;
};

}  // namespace tensorcache
