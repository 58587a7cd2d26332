// What the tests of this folder share: small vocabularies and a folder for files.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/json.h"
#include "tensorcache/tokenizer.h"
#include "testing/temp_folder.h"
#include "tokenizer/byte_level.h"

namespace tensorcache::tokenizer {

using testing::TempFolder;

inline std::string Bytes(int byte) { return std::string(1, static_cast<char>(byte)); }

// A tokenizer.json of the GPT-2 kind: token b is byte b, token 256 + i what merge i makes, then <|endoftext|>.
inline Json SmallTokenizerJson(const std::vector<std::pair<std::string, std::string>>& merges) {
  Json vocab = Json::object(), list = Json::array();
  for (int byte = 0; byte < 256; ++byte) vocab[ToByteLevel(Bytes(byte))] = byte;
  for (const auto& [left, right] : merges) {
    const size_t number = vocab.size();
    vocab[ToByteLevel(left + right)] = number;
    list.push_back(ToByteLevel(left) + " " + ToByteLevel(right));
  }
  const Json end = {{"id", vocab.size()}, {"content", "<|endoftext|>"}, {"special", true}};
  return {{"added_tokens", Json::array({end})},
          {"normalizer", nullptr},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", list}}}};
}

inline std::vector<int32_t> EncodeOrFail(const Tokenizer& tokenizer, std::string_view text,
                                         const EncodeOptions& options = {}) {
  std::vector<int32_t> tokens;
  const Status status = tokenizer.EncodeWith(options, text, &tokens);
  EXPECT_TRUE(status.ok()) << status.message();
  return tokens;
}

inline std::string DecodeOrFail(const Tokenizer& tokenizer, const std::vector<int32_t>& tokens) {
  std::string text;
  const Status status = tokenizer.Decode(tokens, &text);
  EXPECT_TRUE(status.ok()) << status.message();
  return text;
}

// The message of an error, which must be one line.
inline std::string MessageOf(const Status& status) {
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(status.message().find('\n'), std::string::npos) << status.message();
  return status.message();
}

// `text` is encoded as `tokens`, and they are decoded as it, at once and one by one.
inline void ExpectBothWays(const std::shared_ptr<const Tokenizer>& tokenizer, const std::string& text,
                           const std::vector<int32_t>& tokens) {
  EXPECT_EQ(EncodeOrFail(*tokenizer, text), tokens) << text;
  EXPECT_EQ(DecodeOrFail(*tokenizer, tokens), text);
  StreamDecoder stream(tokenizer);
  std::string streamed;
  for (const int32_t token : tokens) ASSERT_TRUE(stream.Push(token, &streamed).ok());
  EXPECT_TRUE(stream.Finish(&streamed).ok());
  EXPECT_EQ(streamed, text);
}

}  // namespace tensorcache::tokenizer
