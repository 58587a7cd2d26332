#include "server/requests.h"

#include <gtest/gtest.h>

#include <cmath>

#include "server/access.h"
#include "server/metrics.h"
#include "server/token_scores.h"
#include "server/token_text.h"

namespace tensorcache::server {
namespace {

const RequestLimits kLimits{.model = "m", .vocab_size = 256, .max_tokens = 100, .max_choices = 4};

MaybeError Parse(const std::string& body, CompletionRequest* request) {
  Json json;
  if (auto error = ParseBody(body, &json)) return error;
  return ParseRequest(json, kLimits, request);
}

TEST(Requests, ACompletionWithEverything) {
  CompletionRequest request;
  const auto error =
      Parse(R"({"model": "m", "prompt": ["a", [1, 255]], "max_tokens": 7, "n": 2, "temperature": 0.5, "top_p": 0.9,
      "top_k": 3, "min_p": 0.1, "repetition_penalty": 1.1, "presence_penalty": -2, "frequency_penalty": 2, "seed": -1,
      "logit_bias": {"7": -100, "8": 1.5}, "stop": ["x", "yz"], "stream": true, "stream_options": {"include_usage": true},
      "echo": true, "logprobs": 5, "user": "u", "suffix": null, "best_of": 2, "ignore_eos": true})",
            &request);
  ASSERT_FALSE(error.has_value()) << error->message;
  ASSERT_EQ(request.prompts.size(), 2u);
  EXPECT_EQ(std::get<std::string>(request.prompts[0]), "a");
  EXPECT_EQ(std::get<std::vector<int32_t>>(request.prompts[1]), (std::vector<int32_t>{1, 255}));
  EXPECT_EQ(request.reply.max_tokens, 7);
  EXPECT_EQ(request.reply.n, 2);
  EXPECT_EQ(request.reply.sampling.temperature, 0.5);
  EXPECT_EQ(request.reply.sampling.top_k, 3);
  EXPECT_EQ(request.reply.seed, UINT64_MAX);
  EXPECT_EQ(request.reply.presence_penalty, -2);
  EXPECT_EQ(request.reply.logit_bias, (std::vector<std::pair<int32_t, float>>{{7, -100.0f}, {8, 1.5f}}));
  EXPECT_EQ(request.reply.stop, (std::vector<std::string>{"x", "yz"}));
  EXPECT_TRUE(request.reply.stream && request.reply.include_usage && request.reply.ignore_eos && request.echo);
  EXPECT_EQ(request.logprobs, 5);
}

TEST(Requests, PromptsOfAllKinds) {
  for (const auto& [prompt, count] : std::map<std::string, size_t>{
           {R"("a")", 1}, {"[1, 2]", 1}, {R"(["a", "b"])", 2}, {"[[1], [2, 3]]", 2}, {"[]", 1}}) {
    CompletionRequest request;
    ASSERT_FALSE(Parse(R"({"prompt": )" + prompt + "}", &request).has_value()) << prompt;
    EXPECT_EQ(request.prompts.size(), count) << prompt;
  }
}

struct Mistake {
  std::string fields, param, code, words;
};

TEST(Requests, MistakesNameTheField) {
  const std::string invalid = "invalid_value";
  for (const Mistake& mistake : std::vector<Mistake>{
           {R"("temperature": "hot")", "temperature", invalid, "a number from 0 to 2, found the string 'hot'"},
           {R"("temperature": -0.1)", "temperature", invalid, "-0.1"},
           {R"("max_tokens": 101)", "max_tokens", invalid, "from 0 to 100"},
           {R"("max_tokens": 1.5)", "max_tokens", invalid, "a whole number"},
           {R"("max_tokens": 18446744073709551615)", "max_tokens", invalid, "a whole number"},
           {R"("n": 0)", "n", invalid, "from 1 to 4"},
           {R"("n": 5)", "n", invalid, "from 1 to 4"},
           {R"("stream": 1)", "stream", invalid, "true or false"},
           {R"("stream_options": {"include_usage": true})", "stream_options", invalid, "set stream to true"},
           {R"("stream": true, "stream_options": {"inclde_usage": true})", "stream_options.inclde_usage",
            "unknown_parameter", "did you mean 'include_usage'?"},
           {R"("stop": ["a", 1])", "stop", invalid, "strings of 1 to"},
           {R"("stop": "")", "stop", invalid, "strings of 1 to"},
           {R"("logit_bias": {"256": 1})", "logit_bias", invalid, "'256' is no token number below 256"},
           {R"("logit_bias": {"1": 101})", "logit_bias", invalid, "from -100 to 100"},
           {R"("logit_bias": {"x": 1})", "logit_bias", invalid, "'x' is no token"},
           {R"("logprobs": 21)", "logprobs", invalid, "from 0 to 20"},
           {R"("best_of": 3)", "best_of", "unsupported_parameter", "not supported"},
           {R"("suffix": "end")", "suffix", "unsupported_parameter", "not supported"},
           {R"("max_token": 3)", "max_token", "unknown_parameter", "did you mean 'max_tokens'?"},
           {R"("model": "other")", "model", "model_not_found", "'other'; this server has 'm'"},
       }) {
    CompletionRequest request;
    const auto error = Parse(R"({"prompt": "a", )" + mistake.fields + "}", &request);
    ASSERT_TRUE(error.has_value()) << mistake.fields;
    EXPECT_EQ(error->param, mistake.param) << mistake.fields;
    EXPECT_EQ(error->code, mistake.code) << mistake.fields;
    EXPECT_NE(error->message.find(mistake.words), std::string::npos) << error->message;
    EXPECT_EQ(error->status, mistake.code == "model_not_found" ? 404 : 400);
  }
}

TEST(Requests, BadPromptsAndBodies) {
  for (const char* body :
       {"", "{", "[]", "3", R"({"prompt": 3})", R"({"prompt": [1, "a"]})", R"({"prompt": [256]})",
        R"({"prompt": [-1]})", R"({"prompt": [["a"]]})", R"({"prompt": ["a", "b", "c", "d", "e"]})",
        R"({"prompt": ["a", "b"], "n": 3})", R"({})", "{\"prompt\": \"\xff\"}", R"({"prompt": "a", "prompt": "b"})"}) {
    CompletionRequest request;
    const auto error = Parse(body, &request);
    ASSERT_TRUE(error.has_value()) << body;
    EXPECT_EQ(error->status, 400);
    EXPECT_FALSE(error->message.empty());
  }
}

TEST(Requests, ErrorsHaveTheShapeOfOpenAi) {
  EXPECT_EQ(
      ErrorBody(InvalidValue("n", "too \"many\"")),
      R"({"error":{"message":"too \"many\"","type":"invalid_request_error","param":"n","code":"invalid_value"}})");
  EXPECT_EQ(ErrorBody(QueueFull()).find("rate_limit_error") != std::string::npos, true);
  EXPECT_EQ(ErrorOf(Diverged("x")).code, "diverged");
  EXPECT_EQ(ErrorOf(IoError("x")).code, "internal_error");
}

TEST(TokenScores, TheGreedyTokenIsTheFirstOfTheTop) {
  const std::vector<float> logits{0.5f, 2.25f, 2.25f, -1.0f};
  const TokenScore score = ScoreToken(logits, 1, 2);
  EXPECT_EQ(score.top[0], (std::pair<int32_t, float>{1, score.logprob}));
  EXPECT_EQ(score.top[1].first, 2);
  double sum = 0;
  for (const float x : logits) sum += std::exp(static_cast<double>(x));
  EXPECT_NEAR(score.logprob, 2.25 - std::log(sum), 1e-6);
  EXPECT_EQ(ScoreToken(logits, 3, 20).top.size(), 4u);
  EXPECT_TRUE(ScoreToken(logits, 3, 0).top.empty());
}

TEST(TokenScores, PenaltiesCountWhatCame) {
  std::vector<float> logits{1, 2, 3, 4};
  LogitChanges{.presence_penalty = 0.5, .frequency_penalty = 0.25, .bias = {{0, 10.0f}}}.Apply({{1, 1}, {3, 4}},
                                                                                               logits);
  EXPECT_EQ(logits, (std::vector<float>{11, 1.25f, 3, 2.5f}));
}

TEST(TokenText, PartsOfCharactersAreShownAsBytes) {
  const auto tokenizer = MakeByteTokenizer();
  EXPECT_EQ(TokenText(*tokenizer, -1, 'a'), "a");
  EXPECT_EQ(TokenText(*tokenizer, -1, 0xE2), R"(bytes:\xe2)");
  CompletionLogprobs logprobs(*tokenizer);
  logprobs.Add({{.token = 'a'},
                {.token = 0xC3, .logprob = -1},
                {.token = 0xA4, .logprob = -2, .top = {{'b', -0.5f}}},
                {.token = '!', .logprob = -3}});
  const OrderedJson json = logprobs.Take();
  EXPECT_EQ(json["text_offset"], OrderedJson({0, 1, 2, 2}));
  EXPECT_EQ(json["token_logprobs"], OrderedJson({nullptr, -1, -2, -3}));
  EXPECT_EQ(json["top_logprobs"][0], nullptr);
  EXPECT_EQ(json["top_logprobs"][2].dump(), R"({"b":-0.5,"bytes:\\xa4":-2.0})");
  EXPECT_TRUE(logprobs.Take()["tokens"].empty());
}

TEST(AccessKeys, OnlyWholeKeysOpen) {
  const auto keys = AccessKeys::Parse("# mine\nsixteen-letters-1\r\n\nsixteen-letters-2  \n", "keys");
  ASSERT_TRUE(keys.ok()) << keys.status().message();
  EXPECT_EQ(keys->OwnerOf("Bearer sixteen-letters-1"), 0u);
  EXPECT_EQ(keys->OwnerOf("Bearer sixteen-letters-2"), 1u);
  for (const char* given : {"", "Bearer ", "Bearer sixteen-letters-", "Bearer sixteen-letters-11", "sixteen-letters-1",
                            "Bearer sixteen-letters-1sixteen-letters-1", "bearer sixteen-letters-1", "Bearer # mine"}) {
    EXPECT_FALSE(keys->OwnerOf(given).has_value()) << given;
  }
  EXPECT_EQ(AccessKeys().OwnerOf(""), 0u);
  const auto bad = AccessKeys::Parse("a-secret\n", "keys");
  EXPECT_EQ(bad.status().message(), "keys: line 1 is no key; a key has 16 or more visible characters of ASCII");
  EXPECT_FALSE(AccessKeys::Parse("# nothing\n", "keys").ok());
  EXPECT_NE(RandomId(), RandomId());
  EXPECT_EQ(RandomId().size(), 32u);
}

TEST(Metrics, BucketsAddUp) {
  Histogram histogram({1, 2.5});
  for (const double value : {0.5, 1.0, 2.0, 7.0}) histogram.Add(value);
  EXPECT_EQ(
      histogram.Text("x", "Help."),
      "# HELP x Help.\n# TYPE x histogram\nx_bucket{le=\"1\"} 2\nx_bucket{le=\"2.5\"} 3\nx_bucket{le=\"+Inf\"} 4\n"
      "x_sum 10.5\nx_count 4\n");
}

}  // namespace
}  // namespace tensorcache::server
