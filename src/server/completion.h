// POST /v1/completions: goes on with texts.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "server/call.h"
#include "server/engine.h"
#include "server/requests.h"
#include "server/session_store.h"

namespace tensorcache::server {

struct CompletionOptions {
  std::string model;        // its name, for answers
  bool begin = false;       // texts start with the tokenizer's begin-of-text token
  int64_t max_tokens = 16;  // where a request says none
};

// Answers the call, now or later. `session` is that of the request, or null.
void Complete(const std::shared_ptr<Call>& call, const CompletionRequest& request, const CompletionOptions& options,
              std::shared_ptr<SessionUse> session, Engine& engine);

// The tokens of a prompt, which goes on with a text that begins with a begin-of-text token if `begin` says so.
Status EncodePrompt(const Prompt& prompt, bool begin, const Tokenizer& tokenizer, std::vector<int32_t>* tokens);

}  // namespace tensorcache::server
