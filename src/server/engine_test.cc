#include "server/engine.h"

#include <gtest/gtest.h>

#include <cmath>
#include <thread>

#include "server/server_testing.h"
#include "tensorcache/sampling.h"

namespace tensorcache::server {
namespace {

class EngineTest : public ::testing::Test {
 protected:
  std::shared_ptr<Recorder> Submit(GenerationJob job) {
    auto recorder = std::make_shared<Recorder>(job.choices);
    job.listener = recorder;
    std::vector<GenerationJob> jobs;
    jobs.push_back(std::move(job));
    const MaybeError error = engine_.Submit(std::move(jobs));
    EXPECT_FALSE(error.has_value()) << error->message;
    return recorder;
  }
  std::shared_ptr<Recorder> Run(GenerationJob job) {
    auto recorder = Submit(std::move(job));
    recorder->Wait();
    EXPECT_FALSE(recorder->error.has_value()) << recorder->error->message;
    return recorder;
  }
  MaybeError Refusal(GenerationJob job) {
    job.listener = std::make_shared<Recorder>();
    std::vector<GenerationJob> jobs;
    jobs.push_back(std::move(job));
    return engine_.Submit(std::move(jobs));
  }
  // What a session writes without an engine.
  std::vector<int32_t> Alone(const std::vector<int32_t>& prompt, int64_t tokens, const SamplingOptions& options) {
    Session session = std::move(Session::Create(model_)).value();
    for (size_t at = 0; at < prompt.size(); at += 8) {  // as the engine cuts it
      EXPECT_TRUE(session.Prefill(std::span(prompt).subspan(at, std::min<size_t>(8, prompt.size() - at))).ok());
    }
    Sampler sampler = std::move(Sampler::Create(options)).value();
    std::vector<int32_t> reply;
    for (int64_t i = 0; i < tokens; ++i) {
      const auto token = sampler.Sample(session.logits().first(256), session.recent(), session.position());
      EXPECT_TRUE(token.ok());
      reply.push_back(*token);
      EXPECT_TRUE(session.Decode(*token).ok());
    }
    return reply;
  }
  static std::vector<int32_t> TokensOf(const Recorder::Reply& reply) {
    std::vector<int32_t> tokens;
    for (const TokenScore& score : reply.scores) tokens.push_back(score.token);
    return tokens;
  }
  static GenerationJob Job(const std::string& prompt, int64_t tokens, uint64_t seed = 1) {
    return {.prompt = Bytes(prompt),
            .options = {.sampling = {.temperature = 1.5, .seed = seed}, .max_tokens = tokens, .logprobs = 0}};
  }

  const std::shared_ptr<const Model> model_ = SmallModel();
  Metrics metrics_;
  Engine engine_{model_, MakeByteTokenizer(), {.max_batch = 4, .queue = 8}, &metrics_};
};

TEST_F(EngineTest, ManyAtOnceWriteWhatEachWritesAlone) {
  std::vector<std::shared_ptr<Recorder>> all;
  for (int i = 0; i < 8; ++i) all.push_back(Submit(Job(std::string(3 + 7 * i, 'a' + i), 5 + i, i)));
  for (int i = 0; i < 8; ++i) {
    all[i]->Wait();
    EXPECT_EQ(TokensOf(all[i]->replies[0]), Alone(Bytes(std::string(3 + 7 * i, 'a' + i)), 5 + i,
                                                  {.temperature = 1.5, .seed = static_cast<uint64_t>(i)}));
    EXPECT_EQ(all[i]->replies[0].reason, FinishReason::kLength);
    EXPECT_EQ(all[i]->replies[0].tokens, 5 + i);
    EXPECT_EQ(all[i]->ends, 1);
  }
  EXPECT_EQ(metrics_.generated_tokens, 8 * 5 + 28);
  EXPECT_EQ(metrics_.prompt_tokens, 8 * 3 + 7 * 28);
}

TEST_F(EngineTest, ChoicesDifferAndTheFirstIsThatOfOneAlone) {
  GenerationJob job = Job("hello", 12);
  job.choices = 3;
  const auto three = Run(std::move(job)), one = Run(Job("hello", 12));
  EXPECT_EQ(three->replies[0].text, one->replies[0].text);
  EXPECT_NE(TokensOf(three->replies[0]), TokensOf(three->replies[1]));
  EXPECT_NE(TokensOf(three->replies[1]), TokensOf(three->replies[2]));
}

TEST_F(EngineTest, ScoresOfThePromptAreThoseOfASession) {
  GenerationJob job = Job("a longer prompt than a block", 0);
  job.options.score_prompt = true;
  job.options.logprobs = 3;
  const auto recorder = Run(std::move(job));
  const std::vector<int32_t> prompt = Bytes("a longer prompt than a block");
  ASSERT_EQ(recorder->prompt_scores.size(), prompt.size());
  EXPECT_TRUE(std::isnan(recorder->prompt_scores[0].logprob));
  Session session = std::move(Session::Create(model_)).value();
  std::vector<float> logits(prompt.size() * 260);
  ASSERT_TRUE(session.PrefillLogits(prompt, logits).ok());
  for (size_t i = 1; i < prompt.size(); ++i) {
    const TokenScore& score = recorder->prompt_scores[i];
    EXPECT_EQ(score.token, prompt[i]);
    const auto row = std::span(logits).subspan((i - 1) * 260, 256);
    double sum = 0;
    for (const float x : row) sum += std::exp(static_cast<double>(x));
    EXPECT_NEAR(score.logprob, row[prompt[i]] - std::log(sum), 1e-5);
    ASSERT_EQ(score.top.size(), 3u);
    EXPECT_EQ(score.top[0].first, std::max_element(row.begin(), row.end()) - row.begin());
    EXPECT_GE(score.top[0].second, score.top[1].second);
  }
  EXPECT_TRUE(recorder->replies[0].ended);
}

TEST_F(EngineTest, StopStringsEndTheTextBeforeThem) {
  GenerationJob job = Job("hello", 200);
  job.options.logprobs = -1;
  const std::string whole = Run(job)->replies[0].text;
  ASSERT_GT(whole.size(), 60u);
  job.options.stop = {whole.substr(50, 4)};
  const auto stopped = Run(job);
  EXPECT_EQ(stopped->replies[0].text, whole.substr(0, whole.find(job.options.stop[0])));
  EXPECT_EQ(stopped->replies[0].reason, FinishReason::kStop);
}

TEST_F(EngineTest, ABiasForcesAndPenaltiesForbid) {
  GenerationJob job = Job("hello", 20);
  job.options.sampling.temperature = 0;
  job.options.changes.bias = {{'x', 100.0f}};
  EXPECT_EQ(Run(job)->replies[0].text, std::string(20, 'x'));
  // Of two that nothing else comes near to, none comes all the time.
  job.options.changes = {.frequency_penalty = 2, .bias = {{'x', 100.0f}, {'y', 100.0f}}};
  const std::string text = Run(job)->replies[0].text;
  EXPECT_NEAR(static_cast<double>(std::count(text.begin(), text.end(), 'x')), 10, 4);
}

TEST_F(EngineTest, GoesOnFromASnapshot) {
  GenerationJob first = Job("hello", 9);
  first.keep = true;
  const auto begun = Run(first);
  ASSERT_NE(begun->after_prompt, nullptr);
  EXPECT_EQ(begun->after_prompt->position(), 5);
  ASSERT_NE(begun->replies[0].after, nullptr);
  EXPECT_EQ(begun->replies[0].after->position(), 14);
  const std::vector<int32_t> whole = Alone(Bytes("hello"), 20, {.temperature = 1.5, .seed = 1});
  for (int again = 0; again < 2; ++again) {  // a snapshot is not used up
    GenerationJob second = Job("", 11);
    second.from = begun->replies[0].after;
    EXPECT_EQ(TokensOf(Run(second)->replies[0]), std::vector<int32_t>(whole.begin() + 9, whole.end()));
  }
}

TEST_F(EngineTest, WhatNobodyWantsEnds) {
  const auto recorder = Submit(Job("hello", int64_t{1} << 40));
  while (recorder->texts < 3) std::this_thread::yield();
  recorder->still_wanted = false;
  recorder->Wait();
  EXPECT_FALSE(recorder->error.has_value());
  EXPECT_FALSE(recorder->replies[0].ended);
  EXPECT_EQ(metrics_.cancelled, 1);
}

TEST_F(EngineTest, ALongPromptDoesNotHoldUpOthers) {
  const auto writer = Submit(Job("hello", int64_t{1} << 40));
  while (writer->texts < 3) std::this_thread::yield();
  GenerationJob job = Job(std::string(4000, 'x'), 1);
  const int before = writer->texts;
  Run(job);  // 500 blocks
  EXPECT_GE(writer->texts - before, 490);
  writer->still_wanted = false;
  writer->Wait();
}

TEST_F(EngineTest, RefusesWhatItCannotDo) {
  GenerationJob job = Job("hello", 4);
  job.choices = 5;
  EXPECT_EQ(Refusal(job)->code, "invalid_value");
  job.choices = 1;
  job.options.sampling.temperature = -1;
  EXPECT_EQ(Refusal(job)->status, 400);
  job.options.sampling.temperature = 1;
  job.options.stop = {""};
  EXPECT_EQ(Refusal(job)->param, "stop");
}

TEST_F(EngineTest, AFullQueueRefuses) {
  std::vector<std::shared_ptr<Recorder>> all;
  for (int i = 0; i < 4; ++i) all.push_back(Submit(Job("hello", int64_t{1} << 40)));
  for (const auto& recorder : all) {
    while (recorder->texts == 0) std::this_thread::yield();
  }
  for (int i = 0; i < 8; ++i) all.push_back(Submit(Job("hello", 1)));
  const MaybeError error = Refusal(Job("hello", 1));
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->status, 429);
  EXPECT_EQ(error->code, "queue_full");
  EXPECT_GT(error->retry_after, 0);
  for (int i = 0; i < 4; ++i) all[i]->still_wanted = false;
  for (const auto& recorder : all) recorder->Wait();
}

TEST(Engine, LearnedPositionsEndTheReply) {
  Metrics metrics;
  const auto model = SmallModel(PositionKind::kLearned);
  Engine engine(model, MakeByteTokenizer(), {}, &metrics);
  for (const bool keep : {false, true}) {
    auto recorder = std::make_shared<Recorder>();
    std::vector<GenerationJob> jobs;
    jobs.push_back(
        {.prompt = Bytes(std::string(60, 'x')), .options = {.max_tokens = 100}, .keep = keep, .listener = recorder});
    ASSERT_FALSE(engine.Submit(std::move(jobs)).has_value());
    recorder->Wait();
    EXPECT_FALSE(recorder->error.has_value()) << recorder->error->message;
    EXPECT_EQ(recorder->replies[0].tokens, 5);  // four that are read, and one more that need not be
    EXPECT_EQ(recorder->replies[0].reason, FinishReason::kLength);
  }
}

TEST(Engine, ItsEndIsAnErrorForWhatRunsAndWaits) {
  Metrics metrics;
  std::vector<std::shared_ptr<Recorder>> all;
  {
    Engine engine(SmallModel(), MakeByteTokenizer(), {.max_batch = 1}, &metrics);
    for (int i = 0; i < 3; ++i) {
      all.push_back(std::make_shared<Recorder>());
      std::vector<GenerationJob> jobs;
      jobs.push_back({.prompt = Bytes("hello"), .options = {.max_tokens = int64_t{1} << 40}, .listener = all.back()});
      ASSERT_FALSE(engine.Submit(std::move(jobs)).has_value());
    }
    while (all[0]->texts < 3) std::this_thread::yield();
  }
  for (const auto& recorder : all) {
    ASSERT_EQ(recorder->ends, 1);
    EXPECT_EQ(recorder->error->code, "shutting_down");
  }
}

}  // namespace
}  // namespace tensorcache::server
