// POST /v1/chat/completions and /apply-template: conversations.
#pragma once

#include <memory>
#include <string>

#include "server/call.h"
#include "server/chat_template.h"
#include "server/engine.h"
#include "server/requests.h"

namespace tensorcache::server {

struct ChatOptions {
  std::string model;        // its name, for answers
  int64_t max_tokens = 16;  // where a request says none
};

// Answers the call, now or later. `chat` is null where the model has no template: an error.
void Chat(const std::shared_ptr<Call>& call, const ChatRequest& request, const ChatOptions& options,
          const ChatTemplate* chat, Engine& engine);
// The text that the template makes, and its tokens.
void ApplyTemplate(const std::shared_ptr<Call>& call, const ApplyTemplateRequest& request, const ChatTemplate* chat);

}  // namespace tensorcache::server
