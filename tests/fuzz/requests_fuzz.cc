// Any text as the body of each request, with messages in it rendered. What is accepted has numbers within the limits.
#include "server/requests.h"
#include "tests/fuzz/driver.h"

namespace tensorcache::fuzz {
namespace {

using namespace tensorcache::server;  // NOLINT(google-build-using-namespace)

const RequestLimits& Limits() {
  static const RequestLimits limits{.model = "m", .vocab_size = 256, .max_tokens = 100, .max_choices = 4};
  return limits;
}

template <class Request>
MaybeError Parse(const Json& json, Request* request) {
  auto error = ParseRequest(json, Limits(), request);
  if (error) {
    TC_CHECK(error->status == 400 || error->status == 404);
    CheckMessage(InvalidArgument(error->message));
    TC_CHECK(Json::accept(ErrorBody(*error)));
  }
  return error;
}

void CheckReply(const ReplyFields& reply) {
  TC_CHECK(ValidateSamplingOptions(reply.sampling).ok());
  TC_CHECK(reply.n >= 1 && reply.n <= Limits().max_choices);
  TC_CHECK(!reply.max_tokens || (*reply.max_tokens >= 0 && *reply.max_tokens <= Limits().max_tokens));
  TC_CHECK(std::ssize(reply.stop) <= Limits().max_stop_strings);
  for (const auto& [token, bias] : reply.logit_bias) TC_CHECK(token >= 0 && token < 256 && bias >= -100 && bias <= 100);
}

}  // namespace

void Run(std::string_view input) {
  Json json;
  if (auto error = ParseBody(input, &json)) {
    CheckMessage(InvalidArgument(error->message));
    return;
  }
  CompletionRequest completion;
  if (!Parse(json, &completion)) {
    CheckReply(completion.reply);
    TC_CHECK(completion.reply.n * std::ssize(completion.prompts) <= Limits().max_choices);
  }
  ChatRequest chat;
  if (!Parse(json, &chat)) {
    CheckReply(chat.reply);
    TC_CHECK(!chat.prompt.messages.empty());
  }
  ApplyTemplateRequest apply;
  TokenizeRequest tokenize;
  DetokenizeRequest detokenize;
  (void)Parse(json, &apply);
  (void)Parse(json, &tokenize);
  if (!Parse(json, &detokenize)) {
    for (const int32_t token : detokenize.tokens) TC_CHECK(token >= 0 && token < 256);
  }
}

std::vector<std::string> Seeds() {
  return {
      R"({"model":"m","prompt":["a",[1,255]],"max_tokens":7,"n":2,"temperature":0.5,"top_p":0.9,"top_k":3,"seed":-1,)"
      R"("logit_bias":{"7":-100},"stop":["x","yz"],"stream":true,"stream_options":{"include_usage":true},"echo":true,"logprobs":5})",
      R"({"messages":[{"role":"user","content":[{"type":"text","text":"x"}],"name":"n"},{"role":"assistant","content":"y"}],)"
      R"("max_completion_tokens":5,"logprobs":true,"top_logprobs":3,"response_format":{"type":"text"},"chat_template_kwargs":{"a":1}})",
      R"({"content":"hi","add_special":true,"parse_special":true,"with_pieces":true})", R"({"tokens":[1,2,255]})"};
}

std::vector<std::string> Words() {
  return {R"("prompt":)",
          R"("messages":[)",
          R"("role":"system")",
          R"("content":)",
          R"("stop":)",
          R"("logit_bias":{)",
          R"("tokens":[)",
          R"("n":)",
          R"("seed":)",
          R"("stream_options":{)",
          "null",
          "true",
          "18446744073709551615",
          "-1",
          "1e308"};
}

}  // namespace tensorcache::fuzz
