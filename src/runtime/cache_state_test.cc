// Caches in files.
#include <gtest/gtest.h>

#include <cstring>
#include <map>

#include "core/checksum.h"
#include "core/file.h"
#include "runtime/cache_testing.h"
#include "testing/temp_folder.h"

namespace tensorcache {
namespace {

using namespace cache_testing;  // NOLINT(google-build-using-namespace)

class CacheFiles : public ::testing::Test {
 protected:
  CacheFiles() : cache_(Make(Config(CacheMethod::kTensorCache))) {
    Outputs out;
    Feed(cache_, sequence_, 0, 20, &out);
    EXPECT_TRUE(cache_.Save(path_).ok());
    content_ = ReadWholeFile(path_, 1 << 20).value();
  }
  void ExpectLoadFails(const std::string& content, const std::string& word) {
    folder_.Put("broken", content);
    const Status status = cache_.Load(folder_.Path("broken"));
    EXPECT_FALSE(status.ok());
    EXPECT_NE(status.message().find(word), std::string::npos) << status.message();
    EXPECT_EQ(cache_.position(), 20);
  }

  const testing::TempFolder folder_;
  const std::string path_ = folder_.Path("cache");
  const Sequence sequence_{40};
  TwoLevelCache cache_;
  std::string content_;
};

TEST_F(CacheFiles, AreTheSameStateAgain) {
  for (const CacheMethod method : AllMethods()) {
    TwoLevelCache original = Make(Config(method)), loaded = Make(Config(method));
    Outputs expected;
    Feed(original, sequence_, 0, 20, &expected);
    ASSERT_TRUE(original.Save(path_).ok());
    const Status status = loaded.Load(path_);
    ASSERT_TRUE(status.ok()) << status.message();
    Outputs actual = expected;
    Feed(original, sequence_, 20, 20, &expected);
    Feed(loaded, sequence_, 20, 20, &actual);
    EXPECT_EQ(actual.local, expected.local);
  }
}

TEST_F(CacheFiles, WithAnyBitFlippedAreRefused) {
  for (size_t byte = 0; byte < content_.size(); ++byte) {
    std::string broken = content_;
    broken[byte] = static_cast<char>(broken[byte] ^ 1 << byte % 8);
    folder_.Put("broken", broken);
    EXPECT_FALSE(cache_.Load(folder_.Path("broken")).ok()) << byte;
  }
}

TEST_F(CacheFiles, CutOrLongerAreRefused) {
  for (size_t size = 0; size < content_.size(); size += 7) {
    folder_.Put("broken", content_.substr(0, size));
    EXPECT_FALSE(cache_.Load(folder_.Path("broken")).ok()) << size;
  }
  ExpectLoadFails(content_.substr(0, content_.size() - 1), "checksum");
  ExpectLoadFails(content_ + "x", "checksum");
  ExpectLoadFails("", "too few");
  ExpectLoadFails("some other file, long enough to be a state, but not one at all", "not a saved state");
  EXPECT_FALSE(cache_.Load(folder_.Path("nowhere")).ok());
}

// `content` with a checksum that fits.
std::string Resealed(std::string content) {
  content.resize(content.size() - sizeof(uint64_t));
  Crc64 crc;
  crc.Add(std::as_bytes(std::span(content)));
  const uint64_t value = crc.value();
  content.append(reinterpret_cast<const char*>(&value), sizeof(value));
  return content;
}

TEST_F(CacheFiles, OfAnotherVersionOrKindAreRefused) {
  std::string other = content_;
  other[8] = 1;
  ExpectLoadFails(Resealed(other), "version 1");
  other = content_;
  other[12] = 2;
  ExpectLoadFails(Resealed(other), "session");
  // A writer's mistake behind a good checksum.
  ExpectLoadFails(Resealed(content_ + std::string(16, '\0')), "longer");
  ExpectLoadFails(Resealed(content_.substr(0, content_.size() - 16)), "shorter");
}

TEST_F(CacheFiles, ThatAreTooLongReplaceNothing) {
  TwoLevelCache other = Make(Config(CacheMethod::kTensorCache));
  Outputs out;
  Feed(other, sequence_, 0, 7, &out);
  ASSERT_TRUE(other.Save(path_).ok());
  ExpectLoadFails(Resealed(ReadWholeFile(path_, 1 << 20).value() + std::string(16, '\0')), "longer");  // position 20
}

// Where the position of layer `layer` stands in a file.
size_t PositionAt(const std::string& content, int64_t layer) {
  uint64_t config = 0;
  std::memcpy(&config, content.data() + 16, sizeof(config));
  const size_t first = 32 + static_cast<size_t>(config), end = content.size() - sizeof(uint64_t);
  return first + (end - first) / static_cast<size_t>(kLayers) * static_cast<size_t>(layer);
}

std::string WithPosition(std::string content, int64_t layer, int64_t position) {
  std::memcpy(content.data() + PositionAt(content, layer), &position, sizeof(position));
  return content;
}

TEST_F(CacheFiles, WithImpossiblePositionsAreRefused) {
  for (const CacheMethod method : AllMethods()) {
    cache_ = Make(Config(method));
    Outputs out;
    Feed(cache_, sequence_, 0, 20, &out);
    ASSERT_TRUE(cache_.Save(path_).ok());
    const std::string content = ReadWholeFile(path_, 1 << 20).value();
    for (const int64_t position : {INT64_MAX, INT64_MAX - 5, int64_t{1} << 62 | 1, int64_t{-1}, INT64_MIN}) {
      std::string changed = content;
      for (int64_t layer = 0; layer < kLayers; ++layer) changed = WithPosition(changed, layer, position);
      ExpectLoadFails(Resealed(changed), "tokens");
    }
    ExpectLoadFails(Resealed(WithPosition(content, 1, method == CacheMethod::kFull ? 19 : 21)), "");
  }
}

TEST_F(CacheFiles, OfLayersThatDisagreeAreNotMade) {
  Outputs out;
  Advance(cache_, 0, sequence_, 20, 1, &out);
  const Status status = cache_.Save(path_);
  EXPECT_NE(status.message().find("one layer of the cache has seen 21 tokens and another 20"), std::string::npos)
      << status.message();
  EXPECT_EQ(ReadWholeFile(path_, 1 << 20).value(), content_);
}

// As the last program wrote them that had states of version 2: the fingerprints are its own.
TEST_F(CacheFiles, OfVersionTwoAreRead) {
  const std::map<CacheMethod, uint64_t> fingerprints = {{CacheMethod::kFull, 0x760ae6e19b1a5764},
                                                        {CacheMethod::kWindow, 0xa5437ff99722cbc2},
                                                        {CacheMethod::kStreamingLlm, 0x5fb9941f1b708ff6},
                                                        {CacheMethod::kInfini, 0xd34330ba2e118c45},
                                                        {CacheMethod::kTensorCache, 0xeda6821d8da5fa98}};
  for (const CacheMethod method : AllMethods()) {
    TwoLevelCache original = Make(Config(method)), loaded = Make(Config(method));
    Outputs expected;
    Feed(original, sequence_, 0, 20, &expected);
    ASSERT_TRUE(original.Save(path_).ok());
    std::string content = ReadWholeFile(path_, 1 << 20).value();
    content.erase(32, PositionAt(content, 0) - 32);
    content[8] = 2;
    const uint64_t fingerprint = fingerprints.at(method);
    std::memcpy(content.data() + 16, &fingerprint, sizeof(fingerprint));
    const Status status = loaded.Load(folder_.Put("old", Resealed(content)));
    ASSERT_TRUE(status.ok()) << status.message();
    Outputs actual = expected;
    Feed(original, sequence_, 20, 20, &expected);
    Feed(loaded, sequence_, 20, 20, &actual);
    EXPECT_EQ(actual.local, expected.local);
    TwoLevelCacheConfig config = Config(method);
    config.cache.sinks += 1;
    EXPECT_FALSE(Make(config).Load(folder_.Path("old")).ok());
  }
}

TEST_F(CacheFiles, OfAnotherConfigAreRefused) {
  const std::vector<std::pair<void (*)(TwoLevelCacheConfig&), std::string>> changes = {
      {[](TwoLevelCacheConfig& c) { c.cache.window = 6; }, "cache.window is 5, not 6"},
      {[](TwoLevelCacheConfig& c) { c.ring = RingType::kBf16; }, "ring is fp32, not bf16"},
      {[](TwoLevelCacheConfig& c) { c.cache.method = CacheMethod::kWindow; },
       "cache.method is \"tensor_cache\", not \"window\""},
      {[](TwoLevelCacheConfig& c) { c.rope.theta = 500; }, "rope.theta is 10000, not 500"}};
  for (const auto& [change, words] : changes) {
    TwoLevelCacheConfig config = Config(CacheMethod::kTensorCache);
    change(config);
    const Status status = Make(config).Load(path_);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(words), std::string::npos) << status.message();
  }
}

// What is in it gets into the message.
TEST_F(CacheFiles, WithAConfigThatIsNoTextAreRefused) {
  for (const char byte : {'\xFF', '\x1B', '\r', '\0'}) {
    std::string other = content_;
    other[32 + 3] = byte;  // in the first key
    ExpectLoadFails(Resealed(other), "its config cannot be read");
  }
}

TEST_F(CacheFiles, ThatCannotBeWrittenLeaveTheOldOnes) {
  EXPECT_FALSE(cache_.Save(folder_.Path("no/such/folder")).ok());
  EXPECT_EQ(ReadWholeFile(path_, 1 << 20).value(), content_);
}

}  // namespace
}  // namespace tensorcache
