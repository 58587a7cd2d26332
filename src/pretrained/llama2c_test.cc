#include "pretrained/llama2c.h"

#include <gtest/gtest.h>
#include <sentencepiece_processor.h>

#include <numeric>

#include "pretrained/import.h"
#include "pretrained/llama2c_tokenizer.h"
#include "pretrained/pretrained_testing.h"
#include "tensorcache/model.h"
#include "tensorcache/tokenizer.h"
#include "tokenizer/sentencepiece_testing.h"

namespace tensorcache::pretrained {
namespace {

constexpr int32_t kDim = 8, kHidden = 12, kLayers = 2, kHeads = 2, kKvHeads = 1, kVocab = 270, kContext = 10;
constexpr int32_t kHeadDim = kDim / kHeads;

template <class T>
void Put(T value, std::string* file) {
  file->append(reinterpret_cast<const char*>(&value), sizeof(value));
}

// A file of either version whose floats count up from 0; and where each tensor starts, by the name that it gets.
struct TestFile {
  std::string bytes;
  std::map<std::string, float> first;
  float next = 0;

  void Floats(int64_t count) {
    for (int64_t i = 0; i < count; ++i) Put(next++, &bytes);
  }
  void Tensor(const std::string& name, int64_t count) {
    first[name] = next;
    Floats(count);
  }
  void Layers(const std::string& name, int64_t count) {
    for (int i = 0; i < kLayers; ++i) Tensor("model.layers." + std::to_string(i) + "." + name, count);
  }
  void Attention() {
    Layers("self_attn.q_proj.weight", kDim * kDim);
    Layers("self_attn.k_proj.weight", kKvHeads * kHeadDim * kDim);
    Layers("self_attn.v_proj.weight", kKvHeads * kHeadDim * kDim);
    Layers("self_attn.o_proj.weight", kDim * kDim);
  }
  void Mlp() {
    Layers("mlp.gate_proj.weight", kHidden * kDim);
    Layers("mlp.down_proj.weight", kHidden * kDim);
    Layers("mlp.up_proj.weight", kHidden * kDim);
  }
};

TestFile MakeFile(int version, bool tied) {
  TestFile file;
  if (version > 0) {
    Put(uint32_t{0x616b3432}, &file.bytes);
    Put(int32_t{version}, &file.bytes);
  }
  for (const int32_t number :
       {kDim, kHidden, kLayers, kHeads, kKvHeads, version == 0 && !tied ? -kVocab : kVocab, kContext}) {
    Put(number, &file.bytes);
  }
  if (version > 0) {
    Put(static_cast<uint8_t>(tied), &file.bytes);
    file.bytes.resize(256, '\0');
    file.Layers("input_layernorm.weight", kDim);
    file.Layers("post_attention_layernorm.weight", kDim);
    file.Tensor("model.norm.weight", kDim);
    file.Tensor("model.embed_tokens.weight", kVocab * kDim);
    file.Attention();
    file.Mlp();
  } else {
    file.Tensor("model.embed_tokens.weight", kVocab * kDim);
    file.Layers("input_layernorm.weight", kDim);
    file.Attention();
    file.Layers("post_attention_layernorm.weight", kDim);
    file.Mlp();
    file.Tensor("model.norm.weight", kDim);
    file.Floats(2 * kContext * kHeadDim / 2);
  }
  if (!tied) file.Tensor("lm_head.weight", kVocab * kDim);
  return file;
}

// 270 tokens: the unknown, begin and end, bytes, and some letters.
const std::vector<std::string> kPieces = {"\u2581",   "a", "b", "c",  "ab",    "\u2581a",
                                          "\u2581ab", "d", "e", "de", "\u00e9"};

std::string MakeTokenizer() {
  std::string file;
  Put(int32_t{7}, &file);
  const auto put = [&](float score, std::string_view text) {
    Put(score, &file);
    Put(static_cast<int32_t>(text.size()), &file);
    file += text;
  };
  for (const tokenizer::ModelPiece& piece : tokenizer::BpeFile(kPieces, true).pieces) {
    std::string text = piece.text == "<s>" ? "\n<s>\n" : piece.text == "</s>" ? "\n</s>\n" : piece.text;
    for (size_t at; (at = text.find("\u2581")) != text.npos;) text = text.substr(0, at) + ' ' + text.substr(at + 3);
    put(piece.score, text);
  }
  return file;
}

class Llama2cTest : public ::testing::Test {
 protected:
  std::string Error(const std::string& bytes, StatusCode code = StatusCode::kCorrupt) const {
    const std::string path = folder_.Put("m.bin", bytes);
    const auto model = OpenLlama2c(path);
    if (model.ok()) return "ok";
    EXPECT_EQ(model.status().code(), code) << model.status().message();
    EXPECT_TRUE(model.status().message().starts_with(path));
    return model.status().message();
  }

  const testing::TempFolder folder_;
};

TEST_F(Llama2cTest, EveryTensorIsFound) {
  for (const int version : {0, 1}) {
    for (const bool tied : {true, false}) {
      const TestFile file = MakeFile(version, tied);
      const auto model = OpenLlama2c(folder_.Put("m.bin", file.bytes));
      ASSERT_TRUE(model.ok()) << model.status().message();
      EXPECT_EQ(model->config.vocab_size, kVocab);
      EXPECT_EQ(model->config.num_key_value_heads, kKvHeads);
      EXPECT_EQ(model->config.max_position_embeddings, kContext);
      EXPECT_EQ(model->config.norm_eps, 1e-5);
      EXPECT_EQ(model->config.rope_pairing, RopePairing::kInterleaved);
      EXPECT_EQ(model->config.tie_word_embeddings, tied);
      ASSERT_EQ(model->tensors.size(), file.first.size());
      for (const StoredTensor& tensor : model->tensors) {
        ASSERT_TRUE(file.first.contains(tensor.name)) << tensor.name;
        float first;
        std::memcpy(&first, tensor.data.data(), sizeof(first));
        EXPECT_EQ(first, file.first.at(tensor.name)) << tensor.name;
      }
    }
  }
}

TEST_F(Llama2cTest, TheSizeIsChecked) {
  for (const int version : {0, 1}) {
    const std::string good = MakeFile(version, true).bytes;
    EXPECT_EQ(Error(good), "ok");
    for (const size_t size :
         {size_t{0}, size_t{5}, size_t{27}, size_t{28}, size_t{255}, good.size() - 4, good.size() - 1}) {
      EXPECT_NE(Error(good.substr(0, size)), "ok") << size;
    }
    EXPECT_NE(Error(good + "x").find("header describes"), std::string::npos);
    // Whatever the header says. Without tables for it, the size does not depend on the context.
    for (size_t at = version == 0 ? 0 : 8; at < (version == 0 ? 28 : 32); ++at) {
      for (const int value : {0, 1, 2, 0x7f, 0x80, 0xff}) {
        std::string bad = good;
        bad[at] = static_cast<char>(value);
        if (bad == good) continue;
        EXPECT_NE(Error(bad), "ok") << at << " " << value;
      }
    }
  }
}

TEST_F(Llama2cTest, OtherVersionsAreNamed) {
  std::string file = MakeFile(1, true).bytes;
  file[4] = 2;
  EXPECT_NE(Error(file, StatusCode::kUnsupported).find("int8"), std::string::npos);
  file[4] = 3;
  EXPECT_NE(Error(file, StatusCode::kUnsupported).find("version 3"), std::string::npos);
}

TEST_F(Llama2cTest, TheTokenizerIsASentencePieceModel) {
  const auto model = ConvertLlama2cTokenizer(MakeTokenizer(), kVocab);
  ASSERT_TRUE(model.ok()) << model.status().message();
  EXPECT_EQ(*model, tokenizer::WriteSentencePieceFile(tokenizer::BpeFile(kPieces, true)));
  const auto ours = LoadTokenizer(folder_.Put("tokenizer.model", *model));
  ASSERT_TRUE(ours.ok()) << ours.status().message();
  EXPECT_EQ((*ours)->begin_of_text(), 1);
  EXPECT_EQ((*ours)->end_of_text(), 2);
  sentencepiece::SentencePieceProcessor theirs;
  ASSERT_TRUE(theirs.LoadFromSerializedProto(*model).ok());
  for (const std::string text : {"ab ab", "  de\u00e9", "xyz\n", "", "a b c abd"}) {
    std::vector<int32_t> tokens;
    ASSERT_TRUE((*ours)->Encode(text, &tokens).ok());
    EXPECT_EQ(tokens, theirs.EncodeAsIds(text)) << text;
    std::string decoded;
    ASSERT_TRUE((*ours)->Decode(tokens, &decoded).ok());
    EXPECT_EQ(decoded, text);
  }
}

TEST_F(Llama2cTest, DamagedTokenizersAreRefused) {
  const std::string good = MakeTokenizer();
  for (size_t size = 0; size < good.size(); ++size) {
    EXPECT_FALSE(ConvertLlama2cTokenizer(good.substr(0, size), kVocab).ok()) << size;
  }
  EXPECT_FALSE(ConvertLlama2cTokenizer(good + "x", kVocab).ok());
  EXPECT_FALSE(ConvertLlama2cTokenizer(good, kVocab - 1).ok());
  EXPECT_FALSE(ConvertLlama2cTokenizer(good, kVocab + 1).ok());
  std::string bad = good;
  bad.replace(bad.find("<0x41>"), 6, "<0xZZ>");
  EXPECT_NE(ConvertLlama2cTokenizer(bad, kVocab).status().message().find("not a tokenizer of llama2.c"),
            std::string::npos);
  bad = good;
  bad[8] = bad[9] = bad[10] = bad[11] = '\xff';  // a length
  EXPECT_FALSE(ConvertLlama2cTokenizer(bad, kVocab).ok());
}

TEST_F(Llama2cTest, ImportFindsModelAndTokenizer) {
  const TestFile file = MakeFile(0, false);
  const std::string path = folder_.Put("from/stories.bin", file.bytes), out = folder_.Path("out");
  auto report = ImportModel({.from = path, .out = out});
  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_EQ(report->architecture, "llama2.c");
  ASSERT_EQ(report->notes.size(), 1u);
  EXPECT_NE(report->notes[0].find("tok270.bin"), std::string::npos);
  folder_.Put("from/tok270.bin", MakeTokenizer());
  report = ImportModel({.from = folder_.Path("from"), .out = out, .force = true});
  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_EQ(report->tokenizer_tokens, kVocab);
  EXPECT_TRUE(report->has_begin);
  EXPECT_TRUE(report->notes.empty());
  EXPECT_TRUE(Model::Load(out).ok());
  EXPECT_EQ(ReadTensors(out + "/model.safetensors").at("lm_head.weight").At(0), file.first.at("lm_head.weight"));
  // That of this size comes before the one of any, and a name before both.
  folder_.Put("from/tokenizer.bin", "nothing");
  EXPECT_TRUE(ImportModel({.from = path, .out = out, .force = true}).ok());
  EXPECT_NE(ImportModel({.from = path, .out = out, .tokenizer = folder_.Path("from/tokenizer.bin"), .force = true})
                .status()
                .message()
                .find("tokenizer.bin"),
            std::string::npos);
  folder_.Put("from/other.bin", file.bytes);
  EXPECT_NE(ImportModel({.from = folder_.Path("from"), .out = out, .force = true}).status().message().find("name one"),
            std::string::npos);
}

}  // namespace
}  // namespace tensorcache::pretrained
