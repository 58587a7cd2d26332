// encoder.json and vocab.bpe of GPT-2.
#include "tests/fuzz/driver.h"
#include "tests/fuzz/tokenizer_checks.h"

namespace tensorcache::fuzz {

// encoder.json, vocab.bpe, tokenizer_config.json (there is none if it is empty) and a text.
void Run(std::string_view input) {
  const auto parts = Split(input, 4);
  const std::string path = Put("encoder.json", parts[0]);
  Put("vocab.bpe", parts[1]);
  Remove("tokenizer_config.json");
  if (!parts[2].empty()) Put("tokenizer_config.json", parts[2]);
  const auto tokenizer = LoadTokenizer(path);
  if (!tokenizer.ok()) return CheckMessage(tokenizer.status());
  CheckTokenizer(*tokenizer, parts[3]);
}

std::vector<std::string> Seeds() {
  const std::string vocabulary = R"({"a":0,"b":1,"Ġ":2,"ab":3,"Ġab":4,"<|endoftext|>":5})";
  return {
      Join({vocabulary, "#version: 0.2\na b\nĠ ab\n", R"({"tokenizer_class":"GPT2Tokenizer"})", "ab aab<|endoftext|>"}),
      Join({vocabulary, "a b\r\nĠ ab", "", "b ab  a"}), Join({vocabulary, "", "", "ab"})};
}

std::vector<std::string> Words() {
  return {"#version: 0.2\n",   "<|endoftext|>", "Ġ", "Ċ", "Ã", "\r\n", R"("tokenizer_class":)", "2097151", "-1",
          std::string(1, '\0')};
}

}  // namespace tensorcache::fuzz
