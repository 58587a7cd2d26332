#include "data/token_file.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "core/checksum.h"
#include "core/rng.h"
#include "data/data_testing.h"

namespace tensorcache::data {
namespace {

using Lists = std::vector<std::vector<int32_t>>;

class TokenFileTest : public DataTest {
 protected:
  std::string Bytes(int64_t vocab_size, const Lists& documents) const {
    Tokens("file", vocab_size, documents);
    return ReadWholeFile(Path("file"), 1 << 20).value();
  }
};

Result<TokenFile> Parse(std::string_view bytes) {
  return TokenFile::FromMemory(std::as_bytes(std::span(bytes)), "test");
}

std::string ErrorOf(std::string_view bytes, StatusCode code = StatusCode::kCorrupt) {
  const auto file = Parse(bytes);
  if (file.ok()) return "ok";
  EXPECT_EQ(file.status().code(), code);
  EXPECT_TRUE(file.status().message().starts_with("'test': ")) << file.status().message();
  EXPECT_EQ(file.status().message().find('\n'), std::string::npos);
  return file.status().message().substr(8);
}

template <class T>
void Set(std::string* bytes, size_t at, T value) {
  std::memcpy(bytes->data() + at, &value, sizeof(value));
}

// Gives a file of one block, whose tokens take `data` bytes, the checksums that fit what is in it.
void Seal(std::string* bytes, size_t data) {
  const auto parts = std::as_bytes(std::span(*bytes));
  const size_t footer = bytes->size() - 48;
  Crc64 block;
  block.Add(parts.subspan(16, data));
  Set(bytes, 16 + data, block.value());
  Crc64 rest;
  rest.Add(parts.first(16));
  rest.Add(parts.subspan(16 + data, footer + 32 - (16 + data)));
  Set(bytes, footer + 32, rest.value());
}

TEST_F(TokenFileTest, RoundTripWithNarrowAndWideTokens) {
  for (const int64_t vocab : {int64_t{1}, int64_t{256}, int64_t{65536}, int64_t{65537}, int64_t{1} << 31}) {
    Rng rng(static_cast<uint64_t>(vocab));
    Lists documents;
    for (const size_t size : {3, 0, 1, 20000, 0, 8192}) {
      std::vector<int32_t> document(size);
      for (int32_t& token : document) token = static_cast<int32_t>(rng.Below(static_cast<uint64_t>(vocab)));
      documents.push_back(document);
    }
    documents[0] = {0, static_cast<int32_t>(vocab - 1), 0};
    const auto file = Tokens("file", vocab, documents);
    EXPECT_EQ(file->vocab_size(), vocab);
    EXPECT_EQ(file->tokenizer_fingerprint(), 1u);
    ASSERT_EQ(file->documents(), 6);
    EXPECT_EQ(file->tokens(), 3 + 1 + 20000 + 8192);
    for (int64_t i = 0; i < 6; ++i) {
      const auto [begin, end] = file->document(i);
      std::vector<int32_t> read(static_cast<size_t>(end - begin));
      ASSERT_TRUE(file->Read(begin, read).ok());
      EXPECT_EQ(read, documents[static_cast<size_t>(i)]);
    }
    const auto bytes = static_cast<int64_t>(std::filesystem::file_size(Path("file")));
    const int64_t data = 28196 * (vocab <= 65536 ? 2 : 4), blocks = vocab <= 65536 ? 1 : 2;
    EXPECT_EQ(bytes, 16 + data + 8 * blocks + 7 * 8 + 48);
  }
}

TEST_F(TokenFileTest, EmptyFilesAndUnendedDocuments) {
  const auto empty = Tokens("empty", 10, {});
  EXPECT_EQ(empty->tokens(), 0);
  EXPECT_EQ(empty->documents(), 0);
  EXPECT_TRUE(empty->Read(0, {}).ok());

  auto writer = TokenFileWriter::Create(Path("open"), 10, 1);
  const std::vector<int32_t> tokens = {1, 2, 3};
  ASSERT_TRUE(writer->Append(tokens).ok());
  ASSERT_TRUE(writer->Commit().ok());
  const auto file = TokenFile::Open(Path("open"));
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(file->documents(), 1);
  EXPECT_EQ(ReadAll(*file), tokens);
}

TEST_F(TokenFileTest, NothingAppearsBeforeCommit) {
  {
    auto writer = TokenFileWriter::Create(Path("file"), 10, 1);
    ASSERT_TRUE(writer->Append(std::vector<int32_t>{1}).ok());
    EXPECT_FALSE(std::filesystem::exists(Path("file")));
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
}

TEST_F(TokenFileTest, TheWriterRefusesTokensOutsideTheVocabulary) {
  auto writer = TokenFileWriter::Create(Path("file"), 10, 1);
  EXPECT_EQ(writer->Append(std::vector<int32_t>{10}).message(),
            "the tokenizer gave token 10, but its vocabulary has 10");
  EXPECT_FALSE(writer->Append(std::vector<int32_t>{-1}).ok());
}

TEST_F(TokenFileTest, TheReaderRefusesTokensOutsideTheVocabulary) {
  std::string bytes = Bytes(10, {{1, 2, 3, 4}});
  Set<uint16_t>(&bytes, 16 + 2 * 2, 10);
  Seal(&bytes, 4 * 2);
  const auto file = Parse(bytes);
  ASSERT_TRUE(file.ok());  // right checksums
  std::vector<int32_t> out(2);
  EXPECT_TRUE(file->Read(0, out).ok());
  const Status status = file->Read(1, out);
  EXPECT_EQ(status.code(), StatusCode::kCorrupt);
  EXPECT_NE(status.message().find("token 10"), std::string::npos) << status.message();
  std::string wide = Bytes(100000, {{1, 2, 3, 4}});
  Set<uint32_t>(&wide, 16, 0xFFFFFFFF);
  Seal(&wide, 4 * 4);
  EXPECT_EQ(Parse(wide)->Read(0, out).code(), StatusCode::kCorrupt);
}

TEST_F(TokenFileTest, ForeignFilesAreRefusedWithReason) {
  EXPECT_EQ(ErrorOf(""), "not a token file");
  EXPECT_EQ(ErrorOf("just some text, long enough for a header"), "not a token file");
  std::string bytes = Bytes(10, {{1, 2, 3}});
  EXPECT_EQ(ErrorOf(bytes), "ok");
  Set<uint32_t>(&bytes, 8, 1);
  EXPECT_EQ(ErrorOf(bytes, StatusCode::kUnsupported),
            "a token file of version 1, this program reads version 2; tokenise the text again");
  EXPECT_EQ(TokenFile::Open(Path("missing")).status().code(), StatusCode::kNotFound);
}

TEST_F(TokenFileTest, EveryTruncationIsRefused) {
  const std::string bytes = Bytes(10, {{1, 2, 3}, {4, 5}});
  for (size_t size = 0; size < bytes.size(); ++size) EXPECT_NE(ErrorOf(bytes.substr(0, size)), "ok") << size;
  EXPECT_NE(ErrorOf(bytes + "x"), "ok");
  EXPECT_NE(ErrorOf(bytes + bytes), "ok");
}

TEST_F(TokenFileTest, EveryChangedBitIsRefused) {
  const std::string bytes = Bytes(70000, {{1, 2, 3}, {}, {4, 69999, 5, 6}});
  for (size_t at = 0; at < bytes.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string changed = bytes;
      changed[at] = static_cast<char>(changed[at] ^ 1 << bit);
      EXPECT_FALSE(Parse(changed).ok()) << "byte " << at << " bit " << bit;
    }
  }
}

// Of a large file, what is read is compared, and nothing before it is read.
TEST_F(TokenFileTest, DamageIsFoundWhereItIsRead) {
  constexpr int64_t kTokens = 100'000, kInBlock = 32768;
  std::vector<int32_t> tokens(kTokens);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(i % 50000);
  std::string bytes = Bytes(50000, {tokens});
  bytes[16 + 2 * 40'000] ^= 1;  // in the second block
  EXPECT_EQ(ErrorOf(bytes),
            "a damaged token file: wrong checksum of the tokens from 32768 on; delete it and tokenise the text again");
  const auto file = TokenFile::FromMemory(std::as_bytes(std::span(bytes)), "test", 0);
  ASSERT_TRUE(file.ok());
  std::vector<int32_t> out(10);
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(file->Read(kInBlock - 10, out).ok());
    EXPECT_TRUE(file->Read(2 * kInBlock, out).ok());
    EXPECT_TRUE(file->Read(kTokens - 10, out).ok());
    EXPECT_EQ(out.back(), (kTokens - 1) % 50000);
    for (const int64_t first : {kInBlock - 9, kInBlock, 2 * kInBlock - 1}) {
      EXPECT_EQ(file->Read(first, out).code(), StatusCode::kCorrupt) << first;
    }
  }
}

TEST_F(TokenFileTest, HugeCountsAreRefusedBeforeTheyAreUsed) {
  const std::string bytes = Bytes(10, {{1, 2, 3}});
  const size_t footer = bytes.size() - 48;
  for (const size_t field : {16, 24}) {
    for (const uint64_t count : {uint64_t{5}, uint64_t{1} << 32, uint64_t{1} << 61, ~uint64_t{0}}) {
      std::string changed = bytes;
      Set(&changed, footer + field, count);
      EXPECT_TRUE(ErrorOf(changed).starts_with("a damaged token file: ")) << ErrorOf(changed);
      EXPECT_NE(ErrorOf(changed).find("hold"), std::string::npos) << ErrorOf(changed);
    }
  }
}

// A right checksum vouches for nothing: the documents are checked all the same.
TEST_F(TokenFileTest, DocumentsInDisorderAreRefused) {
  const std::string bytes = Bytes(10, {{1, 2, 3}, {4}});
  const size_t offsets = 16 + 8 + 8;
  const auto error = [&](const std::vector<uint64_t>& starts) {
    std::string changed = bytes;
    for (size_t i = 0; i < starts.size(); ++i) Set(&changed, offsets + 8 * i, starts[i]);
    Seal(&changed, 8);
    return ErrorOf(changed);
  };
  EXPECT_EQ(error({0, 3, 4}), "ok");
  EXPECT_EQ(error({0, 0, 4}), "ok");
  EXPECT_EQ(error({0, 5, 4}), "a damaged token file: document 1 ends before it starts");
  EXPECT_EQ(error({0, ~uint64_t{0}, 4}), "a damaged token file: document 1 ends before it starts");
  EXPECT_EQ(error({4, 3, 4}), "a damaged token file: document 0 ends before it starts");
  EXPECT_EQ(error({1, 3, 4}), "a damaged token file: the documents do not cover the tokens");
  EXPECT_EQ(error({0, 3, 5}), "a damaged token file: the documents do not cover the tokens");
  EXPECT_EQ(error({0, 3, ~uint64_t{0}}), "a damaged token file: the documents do not cover the tokens");
}

TEST_F(TokenFileTest, RandomDamageNeverReadsOutside) {
  const std::string bytes = Bytes(10, {{1, 2, 3}, {4}, {5, 6, 7, 8, 9}});
  Rng rng(3);
  for (int i = 0; i < 20000; ++i) {
    // On the heap at its exact size, so that the sanitizers see every byte read too far.
    std::vector<char> damaged(bytes.begin(), bytes.begin() + static_cast<int64_t>(rng.Below(bytes.size() + 1)));
    for (uint64_t changes = rng.Below(4); changes > 0 && !damaged.empty(); --changes) {
      damaged[rng.Below(damaged.size())] = static_cast<char>(rng.NextU32());
    }
    const auto file = Parse({damaged.data(), damaged.size()});
    if (!file.ok()) continue;
    std::vector<int32_t> out(static_cast<size_t>(file->tokens()));
    const Status status = file->Read(0, out);
    EXPECT_TRUE(status.ok() || status.code() == StatusCode::kCorrupt);
  }
}

}  // namespace
}  // namespace tensorcache::data
