// What the tests of this folder share: folders that clean up after themselves, and a tokenizer of bytes.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "data/corpus.h"
#include "data/token_file.h"
#include "tensorcache/tokenizer.h"
#include "testing/temp_folder.h"

namespace tensorcache::data {

// With a folder of its own for each test.
class DataTest : public ::testing::Test {
 protected:
  std::string Path(const std::string& name) const { return temp_.Path(name); }
  void Put(const std::string& name, std::string_view content) const { temp_.Put(name, content); }

  // A token file with these documents.
  std::shared_ptr<const TokenFile> Tokens(const std::string& name, int64_t vocab_size,
                                          const std::vector<std::vector<int32_t>>& documents) const {
    auto writer = TokenFileWriter::Create(Path(name), vocab_size, 1);
    EXPECT_TRUE(writer.ok()) << writer.status().message();
    for (const auto& document : documents) {
      EXPECT_TRUE(writer->Append(document).ok());
      writer->EndDocument();
    }
    EXPECT_TRUE(writer->Commit().ok());
    auto file = TokenFile::Open(Path(name));
    EXPECT_TRUE(file.ok()) << file.status().message();
    return std::make_shared<const TokenFile>(std::move(file).value());
  }

  const testing::TempFolder temp_;
  const std::string folder_ = temp_.path();
};

// Bytes in groups of `group`: with 2, cutting a text at an odd place changes all that follows. Token 65536 ends a text
// and 65535 begins one, if `ends` is set. Refuses text with a '\x01'.
class FakeTokenizer : public Tokenizer {
 public:
  explicit FakeTokenizer(int group = 1, bool ends = false) : group_(group), ends_(ends) {}

  int64_t vocab_size() const override { return 65537; }
  int32_t end_of_text() const override { return ends_ ? 65536 : -1; }
  int32_t begin_of_text() const override { return ends_ ? 65535 : -1; }
  uint64_t fingerprint() const override { return static_cast<uint64_t>(group_) * 2 + (ends_ ? 1 : 0); }

 private:
  Status DoEncode(const EncodeOptions&, std::string_view text, std::vector<int32_t>* tokens) const override {
    if (text.find('\x01') != std::string_view::npos) return InvalidArgument("an unknown character");
    const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
    for (size_t i = 0; i < text.size(); i += static_cast<size_t>(group_)) {
      const int high = group_ == 2 && i + 1 < text.size() ? byte(i + 1) : 0;
      tokens->push_back(high << 8 | byte(i));
    }
    return OkStatus();
  }
  Status DoDecode(int32_t, std::span<const int32_t>, std::string*) const override { return Unsupported("not needed"); }
  Status DoSave(const std::string&) const override { return Unsupported("not needed"); }

  int group_;
  bool ends_;
};

inline std::vector<int32_t> ReadAll(const TokenFile& file) {
  std::vector<int32_t> tokens(static_cast<size_t>(file.tokens()));
  EXPECT_TRUE(file.Read(0, tokens).ok());
  return tokens;
}

}  // namespace tensorcache::data
