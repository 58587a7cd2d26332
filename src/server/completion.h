// POST /v1/completions: from a parsed request to jobs for the engine, and from what it says to the answer.
#pragma once

#include <memory>

#include "server/call.h"
#include "server/engine.h"
#include "server/requests.h"

namespace tensorcache::server {

struct CompletionOptions {
  std::string model;        // its name, for answers
  bool begin = false;       // texts start with the tokenizer's begin-of-text token
  int64_t max_tokens = 16;  // where a request says none
};

// Answers the call, now or later.
void Complete(const std::shared_ptr<Call>& call, CompletionRequest request, const CompletionOptions& options,
              Engine& engine);

// What a reply's fields ask of the engine, but for max_tokens and scores.
GenerationOptions OptionsOf(const ReplyFields& fields);
// 400 context_length_exceeded if a text of `position` tokens cannot take so many more.
MaybeError CheckContext(const Model& model, int64_t position, int64_t prompt_tokens, int64_t max_tokens);
std::string NameOf(FinishReason reason);
OrderedJson UsageJson(int64_t prompt_tokens, int64_t completion_tokens, int64_t cached_tokens);
// Seconds since 1970.
int64_t UnixTime();

}  // namespace tensorcache::server
