// The two kinds of .bin files of llama2.c: an error, or a model that loads and a tokenizer that encodes.
#include "pretrained/import.h"
#include "pretrained/llama2c.h"
#include "pretrained/llama2c_tokenizer.h"
#include "tests/fuzz/model_checks.h"
#include "tests/fuzz/tokenizer_checks.h"
#include "tokenizer/files.h"

namespace tensorcache::fuzz {
namespace {

constexpr int32_t kDim = 4, kHidden = 3, kLayers = 1, kHeads = 2, kKvHeads = 1, kVocab = 5, kContext = 3;

void RunModel(std::string_view bytes) {
  const std::string path = Put("model.bin", bytes);
  const auto model = pretrained::OpenLlama2c(path);
  if (!model.ok()) return CheckMessage(model.status());
  size_t total = 0;
  for (const StoredTensor& tensor : model->tensors) {
    Touch(tensor.data);
    total += tensor.data.size();
  }
  TC_CHECK(total < bytes.size());
  Remove("out");
  const auto report = pretrained::ImportModel({.from = path, .out = PathOf("out"), .tokenizer = "", .progress = {}});
  TC_CHECK(report.ok());
  TC_CHECK(TryModel(PathOf("out"), {}).ok());
}

void RunTokenizer(std::string_view bytes, int64_t vocab_size) {
  const auto model = pretrained::ConvertLlama2cTokenizer(bytes, vocab_size);
  if (!model.ok()) return CheckMessage(model.status());
  const auto tokenizer = tokenizer::LoadSentencePieceModel(Put("tokenizer.model", *model));
  TC_CHECK(tokenizer.ok());
  TC_CHECK((*tokenizer)->vocab_size() == vocab_size);
  CheckTokenizer(*tokenizer, " ab\u00e9 <s>a\n");
}

std::string ModelFile(int version) {
  std::string file = version == 0 ? "" : Raw(uint32_t{0x616b3432}) + Raw(int32_t{version});
  for (const int32_t number : {kDim, kHidden, kLayers, kHeads, kKvHeads, kVocab, kContext}) file += Raw(number);
  if (version > 0) {
    file += '\1';  // tied
    file.resize(256, '\0');
  }
  const int32_t keys = kKvHeads * kDim / kHeads;
  const int32_t layer = 2 * kDim + 2 * kDim * kDim + 2 * keys * kDim + 3 * kHidden * kDim;
  const int32_t rotary = version == 0 ? kContext * kDim / kHeads : 0;
  for (int32_t i = 0; i < kLayers * layer + kVocab * kDim + kDim + rotary; ++i) {
    file += Raw(0.25F - 0.125F * static_cast<float>(i % 5));
  }
  return file;
}

std::string TokenizerFile(const std::vector<std::string>& texts) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  std::string file = Raw(int32_t{6});
  float score = 0;
  const auto add = [&](const std::string& text) {
    file += Raw(score--) + Raw(static_cast<int32_t>(text.size())) + text;
  };
  for (const char* text : {"<unk>", "<s>", "</s>"}) add(text);
  for (size_t byte = 0; byte < 256; ++byte) add(std::string("<0x") + kDigits[byte / 16] + kDigits[byte % 16] + ">");
  for (const std::string& text : texts) add(text);
  return file;
}

}  // namespace

// 'm' and a model, or anything else, the size of a vocabulary (two bytes) and a tokenizer.
void Run(std::string_view input) {
  if (input.size() < 3) return;
  if (input[0] == 'm') return RunModel(input.substr(1));
  RunTokenizer(input.substr(3), static_cast<uint8_t>(input[1]) + 256 * int64_t{static_cast<uint8_t>(input[2])});
}

std::vector<std::string> Seeds() {
  const std::vector<std::string> texts = {" ", "a", "b", " a", "ab", " ab"};
  std::vector<std::string> seeds = {"m" + ModelFile(0), "m" + ModelFile(1)};
  for (const std::string& seed : seeds) TC_CHECK(pretrained::OpenLlama2c(Put("model.bin", seed.substr(1))).ok());
  seeds.push_back("t" + Raw(static_cast<uint16_t>(259 + texts.size())) + TokenizerFile(texts));
  TC_CHECK(pretrained::ConvertLlama2cTokenizer(seeds.back().substr(3), 265).ok());
  return seeds;
}

std::vector<std::string> Words() {
  return {Raw(uint32_t{0x616b3432}), Raw(int32_t{1}), Raw(int32_t{2}), Raw(int32_t{-5}), Raw(INT32_MAX), Raw(INT32_MIN),
          Raw(int32_t{1 << 24}),     "<0x41>"};
}

}  // namespace tensorcache::fuzz
