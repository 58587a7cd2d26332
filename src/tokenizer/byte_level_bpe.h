// Byte-level BPE: the tokenizers of GPT-2, Llama 3 and Qwen 2.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tensorcache/tokenizer.h"
#include "tokenizer/added_tokens.h"
#include "tokenizer/bpe.h"
#include "tokenizer/split.h"
#include "tokenizer/token_table.h"

namespace tensorcache::tokenizer {

// What a tokenizer file says.
struct BpeParts {
  std::vector<std::string> tokens;  // bytes by token; empty where there is no such token. Includes the added ones.
  std::vector<Merge> merges;        // by rank
  std::vector<AddedToken> added;
  SplitPattern pattern = SplitPattern::kGpt2;
  bool nfc = false;            // text is brought into form NFC first
  bool ignore_merges = false;  // a word that is a token is that token, whatever the merges say
};

// By token: whether it is there, and not as an added token alone.
std::vector<bool> MergeableTokens(const BpeParts& parts);

class ByteLevelBpe final : public Tokenizer {
 public:
  // kCorrupt if the parts contradict each other. The vocabulary may lack bytes: text with them is an error.
  static Result<std::shared_ptr<const Tokenizer>> Make(BpeParts parts);

  std::string kind() const override;
  int64_t vocab_size() const override { return tokens_.size(); }
  int32_t end_of_text() const override { return end_of_text_; }
  int32_t begin_of_text() const override { return begin_of_text_; }
  int32_t FindSpecial(std::string_view text) const override { return added_.Find(text); }
  bool IsSpecial(int32_t token) const override { return added_.IsSpecial(token); }
  uint64_t fingerprint() const override { return fingerprint_; }

  // The parts again, for writing them.
  BpeParts Parts() const;

 private:
  explicit ByteLevelBpe(BpeParts parts);

  Status DoEncode(const EncodeOptions& options, std::string_view text, std::vector<int32_t>* tokens) const override;
  Status DoDecode(int32_t previous, std::span<const int32_t> tokens, std::string* text) const override;
  Status DoSave(const std::string& folder) const override;

  void IndexWords(const std::vector<bool>& is_mergeable);
  uint64_t ComputeFingerprint() const;
  // Text between added tokens, at byte `offset` of the whole.
  Status EncodePlain(std::string_view text, size_t offset, BpeMerges::Scratch* scratch,
                     std::vector<int32_t>* tokens) const;
  Status CheckBytes(std::string_view text, size_t offset) const;
  void MergeWord(std::string_view word, BpeMerges::Scratch* scratch) const;

  TokenTable tokens_;  // indexed: the words that are one token. They need no merging, and most words of real text are.
  BpeMerges merges_;
  AddedTokens added_;
  Splitter splitter_;
  bool nfc_;
  bool ignore_merges_;
  std::array<int32_t, 256> byte_tokens_{};  // -1: not in the vocabulary
  bool has_all_bytes_ = true;
  int32_t end_of_text_ = -1;
  int32_t begin_of_text_ = -1;
  uint64_t fingerprint_ = 0;
};

}  // namespace tensorcache::tokenizer
