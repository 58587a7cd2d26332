// The answer to a request for text: gathers what the engine says of all its jobs, and sends it in one piece or as events. What the
// JSON looks like is a ReplyFormat's business.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "server/call.h"
#include "server/engine.h"
#include "server/requests.h"
#include "server/session_store.h"

namespace tensorcache::server {

class ReplyFormat {
 public:
  virtual ~ReplyFormat() = default;
  // The prompt of a choice was read: the text that comes first in the answer.
  virtual std::string Begin(size_t choice, const std::vector<TokenScore>& prompt_scores) = 0;
  // Scores of tokens whose text comes next.
  virtual void AddScores(size_t choice, const std::vector<TokenScore>& scores) = 0;
  // One entry of "choices" in an answer of one piece, and in an event. `finish`: why it ended, or null.
  virtual OrderedJson Whole(size_t choice, std::string text, const OrderedJson& finish) = 0;
  virtual OrderedJson Piece(size_t choice, std::string text, const OrderedJson& finish) = 0;
  // Whether an event with Piece(choice, "") comes before all others.
  virtual bool opens() const { return false; }
};

struct ReplyOptions {
  std::string id_prefix;     // "cmpl-"
  std::string object;        // "text_completion"
  std::string event_object;  // the same, of an event
  std::string model;
  bool stream = false, include_usage = false;
  std::shared_ptr<SessionUse> session = nullptr;  // what is gone on with, and gets the reply
};

// Has the engine write `n` replies to each prompt, each a choice, and answers the call. In a session there is one prompt, which may be
// empty, and one reply; the session changes when the reply is complete, and not before.
void StartReply(const std::shared_ptr<Call>& call, Engine& engine, std::vector<std::vector<int32_t>> prompts, int64_t n,
                const GenerationOptions& generation, ReplyOptions options, std::unique_ptr<ReplyFormat> format);

// What a reply's fields ask of the engine, but for max_tokens and scores.
GenerationOptions OptionsOf(const ReplyFields& fields);
// 400 context_length_exceeded if a text of `position` tokens cannot take so many more.
MaybeError CheckContext(const Model& model, int64_t position, int64_t prompt_tokens, int64_t max_tokens);
// Seconds since 1970.
int64_t UnixTime();

}  // namespace tensorcache::server
