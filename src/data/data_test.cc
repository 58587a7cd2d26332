#include "data/data.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "core/config.h"
#include "data/data_testing.h"

namespace tensorcache::data {
namespace {

class MakeSourceTest : public DataTest {
 protected:
  DataConfig Text(const std::string& tokenizer) const {
    return {.text = {.path = Path("text"), .tokenizer = tokenizer, .cache_dir = Path("cache")}};
  }
};

std::string ErrorOf(const DataConfig& config, const SourceOptions& options) {
  const auto source = MakeSource(config, options, nullptr);
  return source.ok() ? "ok" : source.status().message();
}

TEST_F(MakeSourceTest, Recall) {
  const DataConfig config = {.kind = DataKind::kRecall, .recall = {.gap = 36}};
  std::shared_ptr<const Tokenizer> tokenizer = MakeByteTokenizer();
  const auto source = MakeSource(config, {.seed = 1, .rows_per_batch = 4}, &tokenizer);
  ASSERT_TRUE(source.ok()) << source.status().message();
  EXPECT_EQ((*source)->length(), 271);
  EXPECT_EQ((*source)->vocab_size(), 52);
  EXPECT_EQ(tokenizer, nullptr);
  EXPECT_TRUE(ErrorOf(config, {.consecutive = true}).starts_with("data.kind recall has no consecutive order"));
  EXPECT_NE(ErrorOf({.kind = DataKind::kRecall, .recall = {.gap = -1}}, {}), "ok");
}

TEST_F(MakeSourceTest, Mqar) {
  const DataConfig config = {.kind = DataKind::kMqar, .mqar = {.vocab = 64, .length = 32, .pairs = 4}};
  std::shared_ptr<const Tokenizer> tokenizer = MakeByteTokenizer();
  const auto source = MakeSource(config, {.seed = 1, .length = 7}, &tokenizer);
  ASSERT_TRUE(source.ok()) << source.status().message();
  EXPECT_EQ((*source)->length(), 32);
  EXPECT_EQ((*source)->vocab_size(), 64);
  EXPECT_EQ(tokenizer, nullptr);
  EXPECT_TRUE(ErrorOf(config, {.consecutive = true}).starts_with("data.kind mqar has no consecutive order"));
  EXPECT_NE(ErrorOf({.kind = DataKind::kMqar, .mqar = {.pairs = 0}}, {}), "ok");
}

TEST_F(MakeSourceTest, NeedlesAreTextInBytes) {
  Put("text/a", "It was a dark night. Nobody saw it! The end came late.\n");
  DataConfig config = Text("bytes");
  config.kind = DataKind::kNeedle;
  std::shared_ptr<const Tokenizer> tokenizer;
  const auto source = MakeSource(config, {.seed = 1, .length = 7}, &tokenizer);
  ASSERT_TRUE(source.ok()) << source.status().message();
  EXPECT_EQ((*source)->length(), 512);
  EXPECT_EQ((*source)->vocab_size(), 256);
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_EQ(tokenizer->kind(), "bytes");
  EXPECT_TRUE(ErrorOf(config, {.consecutive = true}).starts_with("data.kind needle has no consecutive order"));
  config.text.tokenizer = "characters";
  EXPECT_NE(ErrorOf(config, {}).find("set data.text.tokenizer to bytes"), std::string::npos);
  config.text = {.path = Path("nowhere")};
  EXPECT_NE(ErrorOf(config, {}).find("data.text.path"), std::string::npos);
  config.needle.task = NeedleTask::kPasskey;  // which reads no text
  EXPECT_EQ(ErrorOf(config, {}), "ok");
}

TEST_F(MakeSourceTest, ShapesOfTasksAreThoseOfTheirRows) {
  EXPECT_FALSE(TaskShapeOf({.kind = DataKind::kText}).has_value());
  EXPECT_TRUE(ValidateTask({.kind = DataKind::kText}).ok());
  const std::vector<DataConfig> configs = {
      {.kind = DataKind::kRecall},
      {.kind = DataKind::kRecall, .recall = {.gap = 5, .episodes = 2, .stores = 3, .tail = 4}},
      {.kind = DataKind::kMqar},
      {.kind = DataKind::kMqar, .mqar = {.vocab = 90, .length = 61, .pairs = 15}},
      {.kind = DataKind::kMqar, .mqar = {.length = 128, .pairs = 32, .min_pairs = 32}},
      {.kind = DataKind::kNeedle, .needle = {.task = NeedleTask::kPasskey, .length = 300}},
      {.kind = DataKind::kNeedle, .needle = {.task = NeedleTask::kSingle1, .length = 3000}}};
  for (const DataConfig& config : configs) {
    EXPECT_TRUE(ValidateTask(config).ok());
    const auto shape = TaskShapeOf(config);
    ASSERT_TRUE(shape.has_value());
    const auto source = MakeSource(config, {.seed = 3}, nullptr);
    EXPECT_EQ(shape->vocab_size, (*source)->vocab_size());
    EXPECT_EQ(shape->length, (*source)->length());
    Batch batch;
    ASSERT_TRUE((*source)->Fill(Split::kTrain, 0, 0, 1, &batch).ok());
    const auto answers = std::ranges::count_if(batch.targets, [](int32_t target) { return target >= 0; });
    EXPECT_EQ(shape->answers, static_cast<double>(answers));
  }
  EXPECT_FALSE(ValidateTask({.kind = DataKind::kRecall, .recall = {.gap = -1}}).ok());
  EXPECT_FALSE(ValidateTask({.kind = DataKind::kMqar, .mqar = {.pairs = 0}}).ok());
  EXPECT_FALSE(ValidateTask({.kind = DataKind::kNeedle, .needle = {.length = 10}}).ok());
}

TEST_F(MakeSourceTest, TextDecodesToItself) {
  std::string text;
  for (int i = 0; i < 400; ++i) text += "l\u00efne " + std::to_string(i) + "\n";
  Put("text/a", text);
  for (const std::string name : {"bytes", "characters"}) {
    for (const bool consecutive : {false, true}) {
      int calls = 0;
      std::shared_ptr<const Tokenizer> tokenizer;
      const auto source = MakeSource(Text(name),
                                     {.seed = 1,
                                      .length = 20,
                                      .rows_per_batch = 4,
                                      .consecutive = consecutive,
                                      .progress = [&](int64_t, int64_t) { ++calls; }},
                                     &tokenizer);
      ASSERT_TRUE(source.ok()) << source.status().message();
      ASSERT_NE(tokenizer, nullptr);
      EXPECT_EQ(calls > 0, !consecutive);  // the second time it is in the cache
      EXPECT_EQ((*source)->vocab_size(), tokenizer->vocab_size());
      EXPECT_EQ((*source)->length(), 20);
      EXPECT_EQ(tokenizer->vocab_size(), name == "bytes" ? 256 : 16);
      for (const Split split : {Split::kTrain, Split::kValid}) {
        Batch batch;
        ASSERT_TRUE((*source)->Fill(split, 2, 0, 4, &batch).ok());
        for (int64_t r = 0; r < 4; ++r) {
          std::string decoded;
          ASSERT_TRUE(
              tokenizer->Decode(std::span(batch.inputs).subspan(static_cast<size_t>(r) * 20, 20), &decoded).ok());
          EXPECT_NE(text.find(decoded), std::string::npos) << decoded;
        }
      }
    }
  }
}

TEST_F(MakeSourceTest, Errors) {
  EXPECT_EQ(ErrorOf({}, {.length = 8}), "data.text.path is empty; give a text file or a folder of text files");
  EXPECT_NE(ErrorOf(Text("bytes"), {.length = 8}).find("data.text.path"), std::string::npos);
  EXPECT_NE(ErrorOf(Text("characters"), {.length = 8}).find("data.text.path"), std::string::npos);
  Put("text/a", "short");
  EXPECT_TRUE(ErrorOf(Text("bytes"), {.length = 8}).starts_with("the training text has 4 tokens; "));
  EXPECT_NE(ErrorOf(Text(Path("missing")), {.length = 2}), "ok");
}

TEST_F(MakeSourceTest, ConfigReadsJson) {
  DataConfig config;
  ASSERT_TRUE(ApplyOverride("kind=recall", &config).ok());
  ASSERT_TRUE(ApplyOverride("recall.gap=48", &config).ok());
  ASSERT_TRUE(ApplyOverride("text.path=some/folder", &config).ok());
  EXPECT_EQ(config.kind, DataKind::kRecall);
  EXPECT_EQ(config.recall.gap, 48);
  DataConfig copy;
  ASSERT_TRUE(ParseConfig(Json::parse(ToJson(config).dump()), &copy).ok());
  EXPECT_EQ(ToJson(copy), ToJson(config));
}

}  // namespace
}  // namespace tensorcache::data
