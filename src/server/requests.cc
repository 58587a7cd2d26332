#include "server/requests.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>

#include "core/text.h"

namespace tensorcache::server {
namespace {

// Of all that a request has: a prompt of a million tokens fits, and its memory stays below some 100 MB.
constexpr JsonLimits kBodyLimits{.max_depth = 32, .max_values = 4'000'000};

std::optional<int32_t> TokenOf(const Json& json, int64_t vocab_size) {
  // The parser makes every integer from 0 on an unsigned one.
  if (!json.is_number_unsigned() || json.get<uint64_t>() >= static_cast<uint64_t>(vocab_size)) return std::nullopt;
  return json.get<int32_t>();
}

void ReadModel(FieldReader& reader, const RequestLimits& limits) {
  std::string model = limits.model;
  reader.String("model", &model);
  if (!reader.ok() || model == limits.model) return;
  ApiError error = NotFoundError(
      "model_not_found", fmt::format("there is no model {}; this server has {}", Quoted(model), Quoted(limits.model)));
  error.param = "model";
  reader.Fail(std::move(error));
}

void ReadStop(FieldReader& reader, const RequestLimits& limits, std::vector<std::string>* stop) {
  const Json* json = reader.Any("stop");
  if (json == nullptr) return;
  const auto add = [&](const Json& one) {
    if (!one.is_string() || one.get_ref<const std::string&>().empty() ||
        std::ssize(one.get_ref<const std::string&>()) > limits.max_stop_bytes) {
      reader.Fail("stop", Expected(fmt::format("strings of 1 to {} bytes", limits.max_stop_bytes), one));
      return;
    }
    stop->push_back(one.get<std::string>());
  };
  if (!json->is_array()) return add(*json);
  if (std::ssize(*json) > limits.max_stop_strings) {
    return reader.Fail("stop", fmt::format("more than {} strings", limits.max_stop_strings));
  }
  for (const Json& one : *json) add(one);
}

void ReadBias(FieldReader& reader, const RequestLimits& limits, std::vector<std::pair<int32_t, float>>* bias) {
  const Json* json = reader.Any("logit_bias");
  if (json == nullptr) return;
  if (!json->is_object()) return reader.Fail("logit_bias", Expected("an object of token numbers and biases", *json));
  for (const auto& [key, value] : json->items()) {
    int32_t token = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), token);
    if (error != std::errc() || end != key.data() + key.size() || token < 0 || token >= limits.vocab_size) {
      return reader.Fail("logit_bias", fmt::format("{} is no token number below {}", Quoted(key), limits.vocab_size));
    }
    const double number = value.is_number() ? value.get<double>() : 1000;
    if (!(std::abs(number) <= 100)) return reader.Fail("logit_bias", Expected("biases from -100 to 100", value));
    bias->emplace_back(token, static_cast<float>(number));
  }
}

void ReadSeed(FieldReader& reader, std::optional<uint64_t>* seed) {
  std::optional<int64_t> number;
  reader.Integer("seed", {INT64_MIN, INT64_MAX}, &number);
  if (number) *seed = static_cast<uint64_t>(*number);
}

void ReadStreaming(FieldReader& reader, ReplyFields* fields) {
  reader.Bool("stream", &fields->stream);
  const Json* json = reader.Any("stream_options");
  if (json == nullptr) return;
  FieldReader options(*json, "stream_options.");
  options.Bool("include_usage", &fields->include_usage);
  options.Unsupported("include_obfuscation", false);
  if (auto error = options.Finish()) return reader.Fail(*error);
  if (!fields->stream) reader.Fail("stream_options", "is for streams; set stream to true, or leave it out");
}

// One prompt or several: a string, tokens, an array of either.
std::vector<Prompt> ReadPrompts(FieldReader& reader, const RequestLimits& limits, bool in_session) {
  std::vector<Prompt> prompts;
  const Json* json = reader.Any("prompt");
  if (json == nullptr && in_session) {
    prompts.emplace_back();  // nothing new
    return prompts;
  }
  if (json == nullptr) {
    reader.Fail("prompt", "is missing; give a text, or token numbers");
    return prompts;
  }
  const auto one = [&](const Json& prompt) -> Prompt {
    if (prompt.is_string()) return prompt.get<std::string>();
    return ReadTokens(reader, "prompt", prompt, limits.vocab_size);
  };
  const bool several = json->is_array() && !json->empty() && ((*json)[0].is_string() || (*json)[0].is_array());
  if (!several) {
    prompts.push_back(one(*json));
  } else if (std::ssize(*json) > limits.max_choices) {
    reader.Fail("prompt", fmt::format("{} prompts; at most {} at a time", json->size(), limits.max_choices));
  } else {
    for (const Json& prompt : *json) prompts.push_back(one(prompt));
  }
  return prompts;
}

// A message's text: a string, or an array of parts that are texts.
std::string ReadContent(FieldReader& reader, const Json* json) {
  std::string text;
  if (json == nullptr) {
    reader.Fail("content", "is missing; give a text");
  } else if (json->is_string()) {
    text = json->get<std::string>();
  } else if (json->is_array()) {
    for (size_t i = 0; i < json->size(); ++i) {
      FieldReader part((*json)[i], reader.PathOf(fmt::format("content[{}].", i)));
      std::string type = "text", piece;
      part.String("type", &type);
      if (type != "text") {
        part.Fail(UnsupportedParameter(part.PathOf("type"), fmt::format("{} is {}; only texts are read",
                                                                        Quoted(part.PathOf("type")), Quoted(type))));
      }
      part.String("text", &piece);
      text += piece;
      if (auto error = part.Finish()) reader.Fail(*error);
    }
  } else {
    reader.Fail("content", Expected("a text or an array of texts", *json));
  }
  return text;
}

void ReadMessages(FieldReader& reader, std::vector<ChatMessage>* messages) {
  const Json* json = reader.Any("messages");
  if (json == nullptr || !json->is_array() || json->empty()) {
    return reader.Fail("messages", json == nullptr ? "is missing; give an array of messages"
                                                   : Expected("an array of messages, at least one", *json));
  }
  for (size_t i = 0; i < json->size() && reader.ok(); ++i) {
    FieldReader fields((*json)[i], fmt::format("messages[{}].", i));
    ChatMessage message;
    fields.String("role", &message.role);
    if (message.role == "developer") message.role = "system";  // its newer name
    if (message.role == "tool" || message.role == "function") {
      fields.Fail(UnsupportedParameter(fields.PathOf("role"), "tools are not supported by this server"));
    } else if (message.role != "system" && message.role != "user" && message.role != "assistant") {
      fields.Fail("role", fmt::format("expected system, developer, user or assistant, found {}", Quoted(message.role)));
    }
    message.content = ReadContent(fields, fields.Any("content"));
    fields.String("name", &message.name);
    for (const char* name : {"tool_calls", "function_call", "audio", "tool_call_id", "refusal"})
      fields.Unsupported(name);
    if (auto error = fields.Finish()) return reader.Fail(*error);
    messages->push_back(std::move(message));
  }
}

void ReadChatPrompt(FieldReader& reader, ChatPrompt* prompt) {
  ReadMessages(reader, &prompt->messages);
  reader.Bool("add_generation_prompt", &prompt->add_generation_prompt);
  if (const Json* variables = reader.Any("chat_template_kwargs")) {
    if (!variables->is_object()) return reader.Fail("chat_template_kwargs", Expected("an object", *variables));
    prompt->variables = *variables;
  }
}

}  // namespace

MaybeError ParseBody(std::string_view body, Json* json) {
  Result<Json> parsed = ParseJson(body, "the request's body", kBodyLimits);
  if (!parsed.ok()) return InvalidValue("", parsed.status().message());
  *json = std::move(parsed).value();
  return std::nullopt;
}

std::vector<int32_t> ReadTokens(FieldReader& reader, std::string_view name, const Json& json, int64_t vocab_size) {
  std::vector<int32_t> tokens;
  if (!json.is_array()) {
    reader.Fail(name, Expected("a text or an array of token numbers", json));
    return tokens;
  }
  tokens.reserve(json.size());
  for (const Json& number : json) {
    const std::optional<int32_t> token = TokenOf(number, vocab_size);
    if (!token) {
      reader.Fail(name, Expected(fmt::format("token numbers from 0 to {}", vocab_size - 1), number));
      return {};
    }
    tokens.push_back(*token);
  }
  return tokens;
}

void ReadReplyFields(FieldReader& reader, const RequestLimits& limits, ReplyFields* fields) {
  ReadModel(reader, limits);
  reader.Integer("n", {1, limits.max_choices}, &fields->n);
  reader.Number("temperature", {0, 2}, &fields->sampling.temperature);
  reader.Number("top_p", {0, 1}, &fields->sampling.top_p);
  reader.Integer("top_k", {0, INT32_MAX}, &fields->sampling.top_k);
  reader.Number("min_p", {0, 1}, &fields->sampling.min_p);
  reader.Number("repetition_penalty", {0.01, 100}, &fields->sampling.repetition_penalty);
  reader.Number("presence_penalty", {-2, 2}, &fields->presence_penalty);
  reader.Number("frequency_penalty", {-2, 2}, &fields->frequency_penalty);
  reader.Bool("ignore_eos", &fields->ignore_eos);
  ReadSeed(reader, &fields->seed);
  ReadBias(reader, limits, &fields->logit_bias);
  ReadStop(reader, limits, &fields->stop);
  ReadStreaming(reader, fields);
  reader.Ignore("user");  // a name for the caller's own records
}

MaybeError ParseRequest(const Json& json, const RequestLimits& limits, CompletionRequest* request) {
  FieldReader reader(json);
  ReadReplyFields(reader, limits, &request->reply);
  reader.Integer("max_tokens", {0, limits.max_tokens}, &request->reply.max_tokens);
  reader.String("session", &request->session);
  const bool in_session = !request->session.empty();
  request->prompts = ReadPrompts(reader, limits, in_session);
  reader.Bool("echo", &request->echo);
  if (in_session && request->echo) reader.Fail("echo", "is not for sessions: what was read before is not kept as text");
  reader.Integer("logprobs", {0, limits.max_top_logprobs}, &request->logprobs);
  reader.Unsupported("best_of", request->reply.n);
  reader.Unsupported("suffix", "");
  const int64_t choices = request->reply.n * std::ssize(request->prompts);
  if (in_session && choices > 1) reader.Fail("session", "a session takes one prompt and one reply; fork it for more");
  if (choices > limits.max_choices) {
    reader.Fail("n", fmt::format("{} replies are asked for; at most {} at a time", choices, limits.max_choices));
  }
  return reader.Finish();
}

MaybeError ParseRequest(const Json& json, const RequestLimits& limits, ChatRequest* request) {
  FieldReader reader(json);
  ReadReplyFields(reader, limits, &request->reply);
  ReadChatPrompt(reader, &request->prompt);
  std::optional<int64_t> completion_tokens;
  reader.Integer("max_tokens", {1, limits.max_tokens}, &request->reply.max_tokens);
  reader.Integer("max_completion_tokens", {1, limits.max_tokens}, &completion_tokens);
  if (completion_tokens) request->reply.max_tokens = completion_tokens;
  reader.Bool("logprobs", &request->logprobs);
  reader.Integer("top_logprobs", {0, limits.max_top_logprobs}, &request->top_logprobs);
  if (request->top_logprobs > 0 && !request->logprobs) reader.Fail("top_logprobs", "wants logprobs to be true");
  reader.Unsupported("response_format", {{"type", "text"}});
  reader.Unsupported("modalities", Json::array({"text"}));
  reader.Unsupported("service_tier", "auto");
  reader.Unsupported("store", false);
  reader.Unsupported("tools", Json::array());
  reader.Unsupported("tool_choice", "none");
  reader.Unsupported("parallel_tool_calls", false);
  for (const char* name : {"functions", "function_call", "audio", "prediction", "reasoning_effort", "verbosity",
                           "web_search_options", "metadata", "prompt_cache_retention"}) {
    reader.Unsupported(name);
  }
  // Names for the caller's own records, and for a cache that is not here.
  reader.Ignore("safety_identifier");
  reader.Ignore("prompt_cache_key");
  return reader.Finish();
}

MaybeError ParseRequest(const Json& json, const RequestLimits& limits, ApplyTemplateRequest* request) {
  FieldReader reader(json);
  ReadModel(reader, limits);
  ReadChatPrompt(reader, &request->prompt);
  return reader.Finish();
}

MaybeError ParseRequest(const Json& json, const RequestLimits& limits, AppendRequest* request) {
  FieldReader reader(json);
  ReadModel(reader, limits);
  const Json* content = reader.Any("content");
  const Json* tokens = reader.Any("tokens");
  if ((content == nullptr) == (tokens == nullptr)) reader.Fail("content", "give either content, a text, or tokens");
  std::string text;
  reader.String("content", &text);
  request->content = std::move(text);
  if (reader.ok() && tokens != nullptr) request->content = ReadTokens(reader, "tokens", *tokens, limits.vocab_size);
  return reader.Finish();
}

MaybeError ParseRequest(const Json& json, const RequestLimits& limits, ForkRequest* request) {
  FieldReader reader(json);
  ReadModel(reader, limits);
  reader.Integer("count", {1, limits.max_forks}, &request->count);
  return reader.Finish();
}

MaybeError ParseRequest(const Json& json, const RequestLimits& limits, CreateSessionRequest* /*request*/) {
  FieldReader reader(json);
  ReadModel(reader, limits);
  return reader.Finish();
}

MaybeError ParseRequest(const Json& json, const RequestLimits& limits, TokenizeRequest* request) {
  FieldReader reader(json);
  ReadModel(reader, limits);
  if (const Json* content = reader.Any("content"); content == nullptr)
    reader.Fail("content", "is missing; give a text");
  reader.String("content", &request->content);
  reader.Bool("add_special", &request->add_special);
  reader.Bool("parse_special", &request->parse_special);
  reader.Bool("with_pieces", &request->with_pieces);
  return reader.Finish();
}

MaybeError ParseRequest(const Json& json, const RequestLimits& limits, DetokenizeRequest* request) {
  FieldReader reader(json);
  ReadModel(reader, limits);
  const Json* tokens = reader.Any("tokens");
  if (tokens == nullptr) reader.Fail("tokens", "is missing; give token numbers");
  if (reader.ok()) request->tokens = ReadTokens(reader, "tokens", *tokens, limits.vocab_size);
  return reader.Finish();
}

}  // namespace tensorcache::server
