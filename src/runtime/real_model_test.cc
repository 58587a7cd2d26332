// A real pretrained model on real text: what smaller weights and a smaller window state cost in NLL.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "core/config.h"
#include "core/file.h"
#include "core/safetensors.h"
#include "tensorcache/session.h"
#include "tensorcache/tokenizer.h"
#include "testing/temp_folder.h"

namespace tensorcache {
namespace {

const std::string kData = TENSORCACHE_SHARED_DATA;
const std::string kStories = kData + "/models/tinystories-656k";

// Stories that a child could read, as the model was trained on.
constexpr char kStory[] =
    "Once upon a time, there was a little girl named Lily. She loved to play with her red ball in the park. One day, "
    "she "
    "saw a big dog near the tree. The dog wanted to play too. Lily was scared at first, but the dog was very kind. "
    "They "
    "played with the ball all day and became good friends. When the sun went down, Lily's mom came to take her home. "
    "\"Can the dog come with us?\" Lily asked. Her mom smiled and said, \"Yes, he can.\" Lily was so happy. She gave "
    "the "
    "dog a big hug. From that day on, they played together every day.";

class RealModel : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(kStories)) GTEST_SKIP() << kStories << " is not there";
    config_.vocab_size = 2048;
    config_.hidden_size = 128;
    config_.intermediate_size = 384;
    config_.num_hidden_layers = 2;
    config_.num_attention_heads = 8;
    config_.num_key_value_heads = 4;
    config_.max_position_embeddings = 512;
    config_.norm = NormKind::kRmsNorm;
    config_.norm_eps = 1e-6;
    config_.hidden_act = Activation::kSilu;
    config_.gated_mlp = true;
    config_.cache.method = CacheMethod::kFull;
    ASSERT_TRUE(WriteFileAtomically(folder_.Path("config.json"), ToJson(config_).dump()).ok());
    // The same tensors; the tied embedding under its own name.
    const auto file = SafetensorsFile::Open(kStories + "/model.safetensors");
    ASSERT_TRUE(file.ok()) << file.status().message();
    SafetensorsWriter writer;
    for (const std::string_view name : file->names()) {
      const TensorRef tensor = file->Find(name).value();
      writer.Add(name == "lm_head.weight" ? "model.embed_tokens.weight" : std::string(name), tensor.dtype,
                 {tensor.shape.begin(), tensor.shape.end()}, tensor.data.data());
    }
    ASSERT_TRUE(writer.Write(folder_.Path("model.safetensors")).ok());
    auto tokenizer = LoadTokenizer(kStories);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
    tokenizer_ = std::move(tokenizer).value();
  }

  std::shared_ptr<const Model> Load(const ModelOptions& options) const {
    auto model = Model::Load(folder_.path(), options);
    EXPECT_TRUE(model.ok()) << model.status().message();
    return std::move(model).value();
  }
  // Mean NLL of the story and of paragraphs of a novel.
  double Nll(const ModelOptions& options) const {
    double sum = 0;
    int64_t count = 0;
    const std::string novel =
        ReadWholeFile(kData + "/novels/valid/Dickens_Expectations_1861.txt", 1 << 24)->substr(0, 1500);
    for (const std::string& text : {std::string(kStory), novel}) {
      std::vector<int32_t> tokens = {tokenizer_->begin_of_text()};
      EXPECT_TRUE(tokenizer_->Encode(text, &tokens).ok());
      std::vector<float> nll(tokens.size());
      Session session = std::move(Session::Create(Load(options))).value();
      EXPECT_TRUE(session.Score(tokens, nll).ok());
      for (size_t i = 1; i < nll.size(); ++i) sum += static_cast<double>(nll[i]);
      count += static_cast<int64_t>(nll.size()) - 1;
    }
    return sum / static_cast<double>(count);
  }

  const testing::TempFolder folder_;
  ModelConfig config_;
  std::shared_ptr<const Tokenizer> tokenizer_;
};

// docs/running.md states these bounds.
TEST_F(RealModel, SmallerNumbersCostLittle) {
  const double fp32 = Nll({.threads = 1});
  const double bf16_ring = Nll({.ring = RingType::kBf16, .threads = 1});
  const double bf16 = Nll({.weights = WeightType::kBf16, .ring = RingType::kBf16, .threads = 1});
  const double int8 = Nll({.weights = WeightType::kInt8, .ring = RingType::kBf16, .threads = 1});
  std::printf("NLL: fp32 %.5f; bf16 window %+.5f; bf16 weights and window %+.5f; int8 weights, bf16 window %+.5f\n",
              fp32, bf16_ring - fp32, bf16 - fp32, int8 - fp32);
  EXPECT_NEAR(bf16_ring, fp32, 0.005);
  EXPECT_NEAR(bf16, fp32, 0.01);
  EXPECT_NEAR(int8, fp32, 0.02);
}

// The text that a plain implementation in double precision, written for the purpose, chooses greedily.
TEST_F(RealModel, WritesTheStoryThatItShould) {
  const std::shared_ptr<const Model> model = Load({.threads = 1});
  std::vector<int32_t> tokens = {tokenizer_->begin_of_text()};
  ASSERT_TRUE(tokenizer_->Encode("Once upon a time, there was a little", &tokens).ok());
  Session session = std::move(Session::Create(model)).value();
  ASSERT_TRUE(session.Prefill(tokens).ok());
  std::vector<int32_t> written;
  for (int i = 0; i < 40; ++i) {
    const auto best = std::max_element(session.logits().begin(), session.logits().end()) - session.logits().begin();
    written.push_back(static_cast<int32_t>(best));
    ASSERT_TRUE(session.Decode(written.back()).ok());
  }
  std::string text;
  ASSERT_TRUE(tokenizer_->DecodeAfter(tokens.back(), written, &text).ok());
  EXPECT_EQ(
      text,
      ". The large liked to go fast and play with his friends. One day, the large met a little girl named Lily. Lily "
      "was sad because she lost her large nest.\nLily asked her friend, Tom, \"Can you help me find ");
}

}  // namespace
}  // namespace tensorcache
