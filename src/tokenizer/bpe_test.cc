#include "tokenizer/bpe.h"

#include <gtest/gtest.h>

#include <map>
#include <utility>

#include "core/rng.h"

namespace tensorcache::tokenizer {
namespace {

using Symbols = std::vector<int32_t>;

// The definition: the lowest rank anywhere, leftmost, one merge at a time.
Symbols Reference(const std::vector<Merge>& merges, Symbols symbols) {
  std::map<std::pair<int32_t, int32_t>, size_t> ranks;
  for (size_t rank = 0; rank < merges.size(); ++rank) ranks[{merges[rank].left, merges[rank].right}] = rank;
  while (true) {
    size_t best = merges.size(), at = 0;
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      const auto found = ranks.find({symbols[i], symbols[i + 1]});
      if (found != ranks.end() && found->second < best) {
        best = found->second;
        at = i;
      }
    }
    if (best == merges.size()) return symbols;
    symbols[at] = merges[best].merged;
    symbols.erase(symbols.begin() + at + 1);
  }
}

enum class Way { kEither, kShort, kLong };

Symbols Apply(const BpeMerges& merges, const Symbols& symbols, Way way) {
  BpeMerges::Scratch scratch;
  scratch.symbols = symbols;
  if (way == Way::kShort) {
    merges.ApplyShort(&scratch);
  } else if (way == Way::kLong) {
    merges.ApplyLong(&scratch);
  } else {
    merges.Apply(&scratch);
  }
  return scratch.symbols;
}

// Random merges over `letters` letters; each makes a token of its own.
std::vector<Merge> RandomMerges(int letters, int count, Rng* rng) {
  std::vector<Merge> merges;
  std::map<std::pair<int32_t, int32_t>, bool> seen;
  for (int32_t merged = letters; merged < letters + count; ++merged) {
    const auto left = static_cast<int32_t>(rng->NextU32() % merged);
    const auto right = static_cast<int32_t>(rng->NextU32() % merged);
    if (!seen.emplace(std::pair(left, right), true).second) break;
    merges.push_back({left, right, merged});
  }
  for (size_t i = merges.size(); i > 1; --i) std::swap(merges[i - 1], merges[rng->NextU32() % i]);
  return merges;
}

TEST(Bpe, BothWaysDoWhatTheDefinitionSays) {
  Rng rng(1, 0);
  for (int trial = 0; trial < 3000; ++trial) {
    const std::vector<Merge> merges = RandomMerges(3, 1 + static_cast<int>(rng.NextU32() % 12), &rng);
    const BpeMerges bpe(merges);
    Symbols symbols(rng.NextU32() % 60);
    for (int32_t& symbol : symbols) symbol = static_cast<int32_t>(rng.NextU32() % 3);
    const Symbols expected = Reference(merges, symbols);
    for (const Way way : {Way::kEither, Way::kShort, Way::kLong}) ASSERT_EQ(Apply(bpe, symbols, way), expected);
  }
}

TEST(Bpe, FindsEveryMergeAndNoOther) {
  constexpr int32_t kLast = BpeMerges::kMaxTokens - 1;
  std::vector<Merge> merges;
  for (int32_t i = 0; i < 30'000; ++i) merges.push_back({i * 7, kLast - i, i});
  const BpeMerges bpe(merges);
  for (int32_t i = 0; i < 30'000; ++i) {
    ASSERT_EQ(bpe.Rank(i * 7, kLast - i), i);
    ASSERT_EQ(bpe.Rank(i * 7 + 1, kLast - i), BpeMerges::kNone);
  }
  EXPECT_EQ(BpeMerges({}).Rank(0, 0), BpeMerges::kNone);
}

// Rescanning would take hours.
TEST(Bpe, AMillionSymbolsAreNoProblem) {
  std::vector<Merge> merges;
  for (int32_t i = 0; i < 10; ++i) merges.push_back({i, i, i + 1});
  const BpeMerges bpe(merges);
  const Symbols result = Apply(bpe, Symbols(1 << 20, 0), Way::kEither);
  EXPECT_EQ(result, Symbols(1 << 10, 10));
}

}  // namespace
}  // namespace tensorcache::tokenizer
