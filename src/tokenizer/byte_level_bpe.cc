#include "tokenizer/byte_level_bpe.h"

#include <fmt/format.h>

#include <algorithm>
#include <climits>
#include <unordered_set>
#include <utility>

#include "core/text.h"
#include "tokenizer/fingerprint.h"
#include "tokenizer/nfc.h"
#include "tokenizer/tokenizer_json.h"

namespace tensorcache::tokenizer {
namespace {

Status CheckAdded(const BpeParts& parts) {
  TC_RETURN_IF_ERROR(CheckAddedTokens(parts.added));
  for (const AddedToken& token : parts.added) {
    if (token.id < 0 || token.id >= std::ssize(parts.tokens) || parts.tokens[token.id] != token.text) {
      return Corrupt(
          fmt::format("added token {} has the number {}, which is not its own", Quoted(token.text), token.id));
    }
  }
  return OkStatus();
}

// Besides being possible, a merge must give what it says: lengths that grow are what ends the merging.
Status CheckMerges(const BpeParts& parts) {
  const auto bytes = [&](int32_t token) -> std::string_view {
    return token >= 0 && token < std::ssize(parts.tokens) ? parts.tokens[token] : std::string_view();
  };
  std::unordered_set<uint64_t> pairs;
  for (size_t rank = 0; rank < parts.merges.size(); ++rank) {
    const auto [left, right, merged] = parts.merges[rank];
    if (bytes(left).empty() || bytes(right).empty() ||
        bytes(merged) != std::string(bytes(left)) + std::string(bytes(right))) {
      return Corrupt(fmt::format("merge {} is of tokens that are not in the vocabulary", rank));
    }
    if (!pairs.insert(static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right)).second) {
      return Corrupt(
          fmt::format("merge {}, of {} and {}, is there twice", rank, Quoted(bytes(left)), Quoted(bytes(right))));
    }
  }
  return OkStatus();
}

// The first of `names` that is an added token, or -1.
int32_t FirstOf(std::initializer_list<std::string_view> names, const AddedTokens& added) {
  for (const std::string_view name : names) {
    if (const int32_t token = added.Find(name); token >= 0) return token;
  }
  return -1;
}

}  // namespace

Result<std::shared_ptr<const Tokenizer>> ByteLevelBpe::Make(BpeParts parts) {
  if (parts.tokens.empty()) return Corrupt("the vocabulary is empty");
  if (std::ssize(parts.tokens) > BpeMerges::kMaxTokens || std::ssize(parts.merges) > BpeMerges::kMaxMerges) {
    return Unsupported(fmt::format("{} tokens and {} merges; the largest vocabulary is {} tokens", parts.tokens.size(),
                                   parts.merges.size(), BpeMerges::kMaxTokens));
  }
  TC_RETURN_IF_ERROR(CheckAdded(parts));
  TC_RETURN_IF_ERROR(CheckMerges(parts));
  return std::shared_ptr<const Tokenizer>(new ByteLevelBpe(std::move(parts)));
}

std::string ByteLevelBpe::kind() const {
  switch (splitter_.pattern()) {
    case SplitPattern::kGpt2: return "byte-level BPE (GPT-2)";
    case SplitPattern::kLlama3: return "byte-level BPE (Llama 3)";
    case SplitPattern::kQwen2: return "byte-level BPE (Qwen 2)";
  }
  return "byte-level BPE";
}

std::vector<bool> MergeableTokens(const BpeParts& parts) {
  std::vector<bool> is_mergeable(parts.tokens.size());
  for (size_t i = 0; i < parts.tokens.size(); ++i) is_mergeable[i] = !parts.tokens[i].empty();
  for (const AddedToken& token : parts.added) {
    if (!token.in_vocabulary) is_mergeable[token.id] = false;
  }
  return is_mergeable;
}

ByteLevelBpe::ByteLevelBpe(BpeParts parts)
    : tokens_(parts.tokens),
      merges_(std::move(parts.merges)),
      added_(parts.added),
      splitter_(parts.pattern),
      nfc_(parts.nfc),
      ignore_merges_(parts.ignore_merges) {
  IndexWords(MergeableTokens(parts));
  has_all_bytes_ = std::ranges::find(byte_tokens_, -1) == byte_tokens_.end();
  end_of_text_ = FirstOf({"<|endoftext|>", "<|end_of_text|>", "</s>"}, added_);
  begin_of_text_ = FirstOf({"<|begin_of_text|>", "<s>"}, added_);
  fingerprint_ = ComputeFingerprint();
}

void ByteLevelBpe::IndexWords(const std::vector<bool>& is_mergeable) {
  byte_tokens_.fill(-1);
  for (int32_t token = 0; token < tokens_.size(); ++token) {
    if (tokens_.Bytes(token).size() == 1 && is_mergeable[token]) {
      byte_tokens_[static_cast<uint8_t>(tokens_.Bytes(token)[0])] = token;
    }
  }
  BpeMerges::Scratch scratch;
  for (int32_t token = 0; token < tokens_.size(); ++token) {
    if (!is_mergeable[token]) continue;
    if (!ignore_merges_) {
      MergeWord(tokens_.Bytes(token), &scratch);
      if (scratch.symbols.size() != 1 || scratch.symbols[0] != token) continue;
    }
    tokens_.Index(token);
  }
}

uint64_t ByteLevelBpe::ComputeFingerprint() const {
  Fingerprint fingerprint;
  fingerprint.Add("byte-level BPE");
  fingerprint.Add(PatternRegex(splitter_.pattern()));
  fingerprint.Add(nfc_);
  fingerprint.Add(ignore_merges_);
  for (int32_t token = 0; token < tokens_.size(); ++token) fingerprint.Add(tokens_.Bytes(token));
  for (const auto& [left, right, merged] : merges_.merges()) {
    fingerprint.Add(static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right));
    fingerprint.Add(static_cast<uint64_t>(merged));
  }
  for (const AddedToken& token : added_.tokens()) {
    fingerprint.Add(token.text);
    fingerprint.Add(token.special);
  }
  return fingerprint.value();
}

Status ByteLevelBpe::DoEncode(const EncodeOptions& options, std::string_view text, std::vector<int32_t>* tokens) const {
  // Places have 32 bits, and form C may take three times as many bytes.
  if (text.size() > (nfc_ ? INT_MAX / 3 : INT_MAX)) {
    return InvalidArgument(fmt::format("a text of {} bytes is too long to encode at once; cut it", text.size()));
  }
  BpeMerges::Scratch scratch;
  for (size_t at = 0; at < text.size();) {
    const AddedTokens::Match match = added_.Next(text, at, options.special_tokens);
    TC_RETURN_IF_ERROR(EncodePlain(text.substr(at, match.begin - at), at, &scratch, tokens));
    at = match.begin;
    if (match.token == nullptr) break;
    tokens->push_back(match.token->id);
    at += match.token->text.size();
  }
  return OkStatus();
}

Status ByteLevelBpe::EncodePlain(std::string_view text, size_t offset, BpeMerges::Scratch* scratch,
                                 std::vector<int32_t>* tokens) const {
  std::string storage;
  if (nfc_) text = Nfc(text, &storage);
  if (!has_all_bytes_) TC_RETURN_IF_ERROR(CheckBytes(text, offset));
  for (size_t at = 0; at < text.size();) {
    const size_t end = splitter_.WordEnd(text, at);
    const std::string_view word = text.substr(at, end - at);
    if (const int32_t token = tokens_.Find(word); token >= 0) {
      tokens->push_back(token);
    } else {
      MergeWord(word, scratch);
      tokens->insert(tokens->end(), scratch->symbols.begin(), scratch->symbols.end());
    }
    at = end;
  }
  return OkStatus();
}

Status ByteLevelBpe::CheckBytes(std::string_view text, size_t offset) const {
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<uint8_t>(text[i]);
    if (byte_tokens_[byte] >= 0) continue;
    return InvalidArgument(
        fmt::format("the vocabulary has no token for byte 0x{:02x}, at offset {} of the text", byte, offset + i));
  }
  return OkStatus();
}

void ByteLevelBpe::MergeWord(std::string_view word, BpeMerges::Scratch* scratch) const {
  scratch->symbols.clear();
  for (const char byte : word) scratch->symbols.push_back(byte_tokens_[static_cast<uint8_t>(byte)]);
  merges_.Apply(scratch);
}

Status ByteLevelBpe::DoDecode(int32_t /*previous*/, std::span<const int32_t> tokens, std::string* text) const {
  for (const int32_t token : tokens) {
    if (!tokens_.Has(token)) {
      return InvalidArgument(fmt::format("there is no token {} in a vocabulary of {}", token, tokens_.size()));
    }
    text->append(tokens_.Bytes(token));
  }
  return OkStatus();
}

Status ByteLevelBpe::DoSave(const std::string& folder) const { return SaveTokenizerJson(Parts(), folder); }

BpeParts ByteLevelBpe::Parts() const {
  BpeParts parts{.tokens = {},
                 .merges = {merges_.merges().begin(), merges_.merges().end()},
                 .added = added_.tokens(),
                 .pattern = splitter_.pattern(),
                 .nfc = nfc_,
                 .ignore_merges = ignore_merges_};
  for (int32_t token = 0; token < tokens_.size(); ++token) parts.tokens.emplace_back(tokens_.Bytes(token));
  return parts;
}

}  // namespace tensorcache::tokenizer
