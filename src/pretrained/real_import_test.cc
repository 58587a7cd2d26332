// Real models, from the files that others published to the text that they write.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "core/json.h"
#include "pretrained/export.h"
#include "pretrained/import.h"
#include "pretrained/pretrained_testing.h"
#include "tensorcache/model.h"
#include "tensorcache/session.h"
#include "tensorcache/tokenizer.h"

namespace tensorcache::pretrained {
namespace {

const std::string kModels = std::string(TENSORCACHE_SHARED_DATA) + "/models/";

class RealImport : public ::testing::Test {
 protected:
  // What the model makes of `prompt`, with its most likely tokens.
  static std::string Write(const std::string& folder, const std::string& prompt, int tokens) {
    const auto model = Model::Load(folder, {.threads = 1});
    EXPECT_TRUE(model.ok()) << model.status().message();
    const auto tokenizer = LoadTokenizer(folder);
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().message();
    if (!model.ok() || !tokenizer.ok()) return "";
    std::vector<int32_t> text = {(*tokenizer)->begin_of_text()};
    EXPECT_TRUE((*tokenizer)->Encode(prompt, &text).ok());
    Session session = std::move(Session::Create(*model)).value();
    EXPECT_TRUE(session.Prefill(text).ok());
    for (int i = 0; i < tokens; ++i) {
      const auto logits = session.logits();
      text.push_back(static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin()));
      EXPECT_TRUE(session.Decode(text.back()).ok());
    }
    std::string written;
    EXPECT_TRUE((*tokenizer)->DecodeAfter(text[0], std::span(text).subspan(1), &written).ok());
    return written;
  }

  const testing::TempFolder folder_;
  const std::string out_ = folder_.Path("model");
};

// The beginning of what llama2.c's documentation shows.
TEST_F(RealImport, Stories260K) {
  if (!std::filesystem::exists(kModels + "stories260K")) GTEST_SKIP() << kModels << "stories260K is not there";
  const auto report = ImportModel({.from = kModels + "stories260K", .out = out_});
  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_EQ(report->parameters, 260032);
  EXPECT_EQ(report->tokenizer_tokens, 512);
  const std::string story = Write(out_, "", 60);
  EXPECT_TRUE(story.starts_with(
      "Once upon a time, there was a little girl named Lily. She loved to play outside in the park. "))
      << story;

  // As others will read it: rows in halves, without our key.
  const std::string exported = folder_.Path("exported"), again = folder_.Path("again");
  const auto written = ExportModel({.model = out_, .out = exported});
  ASSERT_TRUE(written.ok()) << written.status().message();
  Json config = ReadJsonFile(exported + "/config.json").value();
  ASSERT_EQ(config.erase("tensorcache"), 1u);
  ASSERT_TRUE(WriteFileAtomically(exported + "/config.json", config.dump()).ok());
  ASSERT_TRUE(ImportModel({.from = exported, .out = again}).ok());
  EXPECT_EQ(Write(again, "", 60), story);
}

TEST_F(RealImport, TinyStories656K) {
  const std::string from = kModels + "tinystories-656k";
  if (!std::filesystem::exists(from)) GTEST_SKIP() << from << " is not there";
  const auto report = ImportModel({.from = from, .out = out_});
  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_TRUE(report->notes.empty());
  EXPECT_EQ(report->parameters, 656000);
  EXPECT_EQ(Write(out_, "Once upon a time, there was a little", 40),
            "Once upon a time, there was a little. The large liked to go fast and play with his friends. One day, the "
            "large met "
            "a little girl named Lily. Lily was sad because she lost her large nest.\nLily asked her friend, Tom, "
            "\"Can you help "
            "me find ");
  // Their file has the tied embedding under the name of the output; ours, and what we export, under that of the input.
  const std::string exported = folder_.Path("exported");
  ASSERT_TRUE(ExportModel({.model = out_, .out = exported}).ok());
  TestTensors theirs = ReadTensors(from + "/model.safetensors");
  auto embedding = theirs.extract("lm_head.weight");
  embedding.key() = "model.embed_tokens.weight";
  theirs.insert(std::move(embedding));
  ExpectSameTensors(ReadTensors(exported + "/model.safetensors"), theirs);
}

}  // namespace
}  // namespace tensorcache::pretrained
