// Learns byte-level BPE: count the distinct words once, then merge the most frequent pair of neighbours again and again,
// changing the counts only where the pair stands.
#include <fmt/format.h>

#include <algorithm>
#include <queue>
#include <unordered_map>
#include <utility>

#include "core/no_throw.h"
#include "tensorcache/tokenizer.h"
#include "tokenizer/byte_level_bpe.h"
#include "tokenizer/split.h"

namespace tensorcache {
namespace tokenizer {
namespace {

constexpr int kBytes = 256;
// Longer words are counted in pieces: a merge looks through whole words.
constexpr size_t kMaxWord = 256;

uint64_t Key(int32_t left, int32_t right) { return static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right); }

struct Word {
  std::vector<int32_t> symbols;
  int64_t count = 0;
};

struct Pair {
  int64_t count = 0;
  std::vector<uint32_t> words;  // where it stands or stood, some of them twice
};

// The most frequent first; of equally frequent ones the one of older tokens, so that the order is always the same.
struct Candidate {
  int64_t count = 0;
  uint64_t key = 0;
  bool operator<(const Candidate& other) const { return count != other.count ? count < other.count : key > other.key; }
};

class Trainer {
 public:
  explicit Trainer(std::span<const std::string_view> texts) {
    std::unordered_map<std::string_view, int64_t> counts;
    const Splitter splitter(SplitPattern::kGpt2);
    for (const std::string_view text : texts) {
      for (size_t at = 0; at < text.size();) {
        const size_t end = splitter.WordEnd(text, at);
        for (; end - at > kMaxWord; at += kMaxWord) ++counts[text.substr(at, kMaxWord)];
        ++counts[text.substr(at, end - at)];
        at = end;
      }
    }
    for (int byte = 0; byte < kBytes; ++byte) parts_.tokens.emplace_back(1, static_cast<char>(byte));
    for (const auto& [text, count] : counts) {
      Word word{.symbols = {}, .count = count};
      for (const char byte : text) word.symbols.push_back(static_cast<uint8_t>(byte));
      words_.push_back(std::move(word));
    }
    for (uint32_t i = 0; i < words_.size(); ++i) AddPairs(i, -1);
    for (const auto& [key, pair] : pairs_) candidates_.push({pair.count, key});
  }

  void Train(int64_t tokens) {
    while (std::ssize(parts_.tokens) < tokens && !candidates_.empty()) {
      const Candidate best = candidates_.top();
      candidates_.pop();
      const int64_t count = pairs_[best.key].count;
      if (count < 2) continue;
      // Counts fall unnoticed by the queue; what rises is put in again.
      if (count != best.count) {
        candidates_.push({count, best.key});
        continue;
      }
      MergePair(best.key);
    }
  }

  BpeParts TakeParts() { return std::move(parts_); }

 private:
  // Counts the pairs of a word; lists the word where a pair has the symbol `changed` in it, or everywhere if -1.
  void AddPairs(uint32_t index, int32_t changed) {
    const Word& word = words_[index];
    for (size_t i = 0; i + 1 < word.symbols.size(); ++i) {
      const int32_t left = word.symbols[i], right = word.symbols[i + 1];
      Pair& pair = pairs_[Key(left, right)];
      pair.count += word.count;
      if (changed >= 0 && left != changed && right != changed) continue;
      if (pair.words.empty() || pair.words.back() != index) pair.words.push_back(index);
      if (changed >= 0) risen_.push_back(Key(left, right));
    }
  }

  void SubtractPairs(const Word& word) {
    for (size_t i = 0; i + 1 < word.symbols.size(); ++i) {
      pairs_[Key(word.symbols[i], word.symbols[i + 1])].count -= word.count;
    }
  }

  void MergePair(uint64_t key) {
    const auto left = static_cast<int32_t>(key >> 32), right = static_cast<int32_t>(key);
    // Never the bytes of an older token: what stands between two borders that no merge has crossed is always merged in
    // the same way.
    const auto merged = static_cast<int32_t>(parts_.tokens.size());
    parts_.tokens.push_back(parts_.tokens[left] + parts_.tokens[right]);
    parts_.merges.push_back({left, right, merged});
    const std::vector<uint32_t> words = std::move(pairs_[key].words);
    risen_.clear();
    for (const uint32_t index : words) {
      std::vector<int32_t>& symbols = words_[index].symbols;
      const auto is_here = [&](size_t i) {
        return symbols[i] == left && i + 1 < symbols.size() && symbols[i + 1] == right;
      };
      size_t from = 0;
      while (from < symbols.size() && !is_here(from)) ++from;
      if (from == symbols.size()) continue;
      SubtractPairs(words_[index]);
      size_t to = from;
      while (from < symbols.size()) {
        const bool merge = is_here(from);
        symbols[to++] = merge ? merged : symbols[from];
        from += merge ? 2 : 1;
      }
      symbols.resize(to);
      AddPairs(index, merged);
    }
    pairs_.erase(key);
    std::ranges::sort(risen_);
    const auto repeated = std::ranges::unique(risen_);
    risen_.erase(repeated.begin(), repeated.end());
    for (const uint64_t risen : risen_) candidates_.push({pairs_[risen].count, risen});
  }

  BpeParts parts_;
  std::vector<Word> words_;
  std::unordered_map<uint64_t, Pair> pairs_;
  std::priority_queue<Candidate> candidates_;
  std::vector<uint64_t> risen_;  // of one merge: the pairs that became more frequent
};

Result<std::shared_ptr<const Tokenizer>> Train(std::span<const std::string_view> texts, int64_t vocab_size) {
  constexpr int64_t kSmallest = kBytes + 1;
  if (vocab_size < kSmallest || vocab_size > BpeMerges::kMaxTokens) {
    return InvalidArgument(fmt::format("a vocabulary of {} tokens is not possible, only {} to {}", vocab_size,
                                       kSmallest, BpeMerges::kMaxTokens));
  }
  Trainer trainer(texts);
  trainer.Train(vocab_size - 1);
  BpeParts parts = trainer.TakeParts();
  const std::string end_of_text = "<|endoftext|>";
  parts.added.push_back({.id = static_cast<int32_t>(parts.tokens.size()), .text = end_of_text});
  parts.tokens.push_back(end_of_text);
  return ByteLevelBpe::Make(std::move(parts));
}

}  // namespace
}  // namespace tokenizer

Result<std::shared_ptr<const Tokenizer>> TrainByteLevelBpe(std::span<const std::string_view> texts,
                                                           int64_t vocab_size) {
  return NoThrow("train a tokenizer", [&] { return tokenizer::Train(texts, vocab_size); });
}

}  // namespace tensorcache
