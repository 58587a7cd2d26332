// What clients ask for, as structs. Parsing is strict (fields.h) and looks at nothing but the request and the limits here.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "core/json.h"
#include "server/chat_template.h"
#include "server/error.h"
#include "server/fields.h"
#include "tensorcache/sampling.h"

namespace tensorcache::server {

// What requests may ask for; the same for all.
struct RequestLimits {
  std::string model;          // its name
  int64_t vocab_size = 0;     // of the tokenizer
  int64_t max_tokens = 4096;  // of one reply
  int64_t max_choices = 8;    // prompts times n
  int64_t max_forks = 64;
  int64_t max_top_logprobs = 20;
  int64_t max_stop_strings = 16;
  int64_t max_stop_bytes = 1024;  // of one of them
};

// The fields that completions and chats share.
struct ReplyFields {
  std::optional<int64_t> max_tokens;
  int64_t n = 1;
  SamplingOptions sampling;      // without the seed
  std::optional<uint64_t> seed;  // not given: a random one
  double presence_penalty = 0;
  double frequency_penalty = 0;
  std::vector<std::pair<int32_t, float>> logit_bias;
  std::vector<std::string> stop;
  bool ignore_eos = false;
  bool stream = false;
  bool include_usage = false;
};

using Prompt = std::variant<std::string, std::vector<int32_t>>;  // a text, or tokens

// POST /v1/completions
struct CompletionRequest {
  ReplyFields reply;
  std::vector<Prompt> prompts;
  bool echo = false;
  std::optional<int64_t> logprobs;
  std::string session;  // what is gone on with; "": a new text
};

// POST /v1/chat/completions
struct ChatRequest {
  ReplyFields reply;
  ChatPrompt prompt;
  bool logprobs = false;
  int64_t top_logprobs = 0;
};

// POST /apply-template
struct ApplyTemplateRequest {
  ChatPrompt prompt;
};

// POST /v1/sessions/{id}/append
struct AppendRequest {
  Prompt content;
};

// POST /v1/sessions/{id}/fork
struct ForkRequest {
  int64_t count = 1;
};

// POST /v1/sessions, which takes nothing but the model's name
struct CreateSessionRequest {};

// POST /tokenize, /detokenize
struct TokenizeRequest {
  std::string content;
  bool add_special = false;    // the begin-of-text token first
  bool parse_special = false;  // texts such as <|endoftext|> are control tokens
  bool with_pieces = false;    // the text of each token as well
};
struct DetokenizeRequest {
  std::vector<int32_t> tokens;
};

// The body as JSON, within bounds that keep its memory small.
MaybeError ParseBody(std::string_view body, Json* json);

MaybeError ParseRequest(const Json& json, const RequestLimits& limits, CompletionRequest* request);
MaybeError ParseRequest(const Json& json, const RequestLimits& limits, ChatRequest* request);
MaybeError ParseRequest(const Json& json, const RequestLimits& limits, ApplyTemplateRequest* request);
MaybeError ParseRequest(const Json& json, const RequestLimits& limits, AppendRequest* request);
MaybeError ParseRequest(const Json& json, const RequestLimits& limits, ForkRequest* request);
MaybeError ParseRequest(const Json& json, const RequestLimits& limits, CreateSessionRequest* request);
MaybeError ParseRequest(const Json& json, const RequestLimits& limits, TokenizeRequest* request);
MaybeError ParseRequest(const Json& json, const RequestLimits& limits, DetokenizeRequest* request);

// Reads `model` and the fields of ReplyFields; max_tokens is the caller's.
void ReadReplyFields(FieldReader& reader, const RequestLimits& limits, ReplyFields* fields);
// Tokens of the vocabulary, or an error in the reader.
std::vector<int32_t> ReadTokens(FieldReader& reader, std::string_view name, const Json& json, int64_t vocab_size);

}  // namespace tensorcache::server
