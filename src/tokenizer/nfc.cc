#include "tokenizer/nfc.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "tokenizer/unicode.h"
#include "tokenizer/unicode_tables.h"

namespace tensorcache::tokenizer {
namespace {

// Hangul syllables are composed by arithmetic: leading consonant, vowel, optional trailing consonant.
constexpr uint32_t kSyllable = 0xAC00, kLeading = 0x1100, kVowel = 0x1161, kTrailing = 0x11A7;
constexpr uint32_t kLeadings = 19, kVowels = 21, kTrailings = 28;  // kTrailing itself means none
constexpr uint32_t kSyllables = kLeadings * kVowels * kTrailings;

constexpr uint64_t kPart = (1 << 21) - 1;
constexpr bool Composes(uint64_t entry) { return entry >> 63; }
constexpr uint32_t Code(uint64_t entry) { return entry >> 42 & kPart; }
constexpr uint32_t First(uint64_t entry) { return entry >> 21 & kPart; }
constexpr uint32_t Second(uint64_t entry) { return entry & kPart; }

int CombiningClass(uint32_t code) {
  const auto after = std::upper_bound(kCombiningClassRuns.begin(), kCombiningClassRuns.end(), code << 8 | 0xFF);
  return static_cast<int>(after[-1] & 0xFF);
}

class Tables {
 public:
  static const Tables& Get() {
    static const Tables tables;
    return tables;
  }

  // Whether `code` can neither change nor join what stands before it: text may be cut before it.
  bool IsStable(uint32_t code) const { return code < 0x300 || !unstable_[code]; }

  void Decompose(uint32_t code, std::vector<uint32_t>* out) const {
    if (code >= kSyllable && code < kSyllable + kSyllables) {
      const uint32_t index = code - kSyllable;
      out->push_back(kLeading + index / (kVowels * kTrailings));
      out->push_back(kVowel + index / kTrailings % kVowels);
      if (index % kTrailings != 0) out->push_back(kTrailing + index % kTrailings);
      return;
    }
    const auto entry = std::ranges::lower_bound(kDecompositions, code, {}, Code);
    if (entry == kDecompositions.end() || Code(*entry) != code) {
      out->push_back(code);
      return;
    }
    Decompose(First(*entry), out);
    if (Second(*entry) != 0) out->push_back(Second(*entry));  // a second part never decomposes further
  }

  // The character that `first` and `second` make, or 0.
  uint32_t Compose(uint32_t first, uint32_t second) const {
    if (first - kLeading < kLeadings && second - kVowel < kVowels) {
      return kSyllable + ((first - kLeading) * kVowels + second - kVowel) * kTrailings;
    }
    if (first - kSyllable < kSyllables && (first - kSyllable) % kTrailings == 0 && second > kTrailing &&
        second < kTrailing + kTrailings) {
      return first + second - kTrailing;
    }
    const uint64_t pair = uint64_t{first} << 21 | second;
    const auto entry = std::ranges::lower_bound(compositions_, pair, {}, &std::pair<uint64_t, uint32_t>::first);
    return entry != compositions_.end() && entry->first == pair ? entry->second : 0;
  }

 private:
  Tables() : unstable_(kLastCode + 1) {
    for (size_t i = 0; i < kCombiningClassRuns.size(); ++i) {
      if ((kCombiningClassRuns[i] & 0xFF) == 0) continue;
      for (uint32_t code = kCombiningClassRuns[i] >> 8; code < kCombiningClassRuns[i + 1] >> 8; ++code) {
        unstable_[code] = true;
      }
    }
    for (const uint64_t entry : kDecompositions) {
      unstable_[Composes(entry) ? Second(entry) : Code(entry)] = true;
      if (Composes(entry)) compositions_.emplace_back(entry & ((uint64_t{1} << 42) - 1), Code(entry));
    }
    for (uint32_t i = 0; i < kVowels; ++i) unstable_[kVowel + i] = true;
    for (uint32_t i = 1; i < kTrailings; ++i) unstable_[kTrailing + i] = true;
    std::ranges::sort(compositions_);
  }

  std::vector<bool> unstable_;
  std::vector<std::pair<uint64_t, uint32_t>> compositions_;  // first << 21 | second -> composed, sorted
};

// Each run of combining marks in the order of their classes; equal classes keep their order.
void OrderMarks(std::vector<uint32_t>* codes) {
  const auto is_mark = [](uint32_t code) { return CombiningClass(code) != 0; };
  auto begin = codes->begin();
  while ((begin = std::find_if(begin, codes->end(), is_mark)) != codes->end()) {
    const auto end = std::find_if_not(begin, codes->end(), is_mark);
    std::stable_sort(begin, end, [](uint32_t a, uint32_t b) { return CombiningClass(a) < CombiningClass(b); });
    begin = end;
  }
}

void ComposeAll(const Tables& tables, std::vector<uint32_t>* codes) {
  size_t size = 0, starter = 0;
  bool has_starter = false;
  int last = -1;  // the class of the last mark kept since the starter; -1 if there is none
  for (const uint32_t code : *codes) {
    const int combining = CombiningClass(code);
    if (has_starter && last < combining) {
      if (const uint32_t composed = tables.Compose((*codes)[starter], code); composed != 0) {
        (*codes)[starter] = composed;
        continue;
      }
    }
    if (combining == 0) {
      has_starter = true;
      starter = size;
    }
    last = combining == 0 ? -1 : combining;
    (*codes)[size++] = code;
  }
  codes->resize(size);
}

void AppendNormalized(const Tables& tables, std::string_view piece, std::vector<uint32_t>* codes, std::string* out) {
  codes->clear();
  for (size_t at = 0; at < piece.size();) {
    const Utf8Char c = DecodeUtf8(piece, at);
    tables.Decompose(c.code, codes);
    at += c.length;
  }
  OrderMarks(codes);
  ComposeAll(tables, codes);
  for (const uint32_t code : *codes) AppendUtf8(code, out);
}

}  // namespace

std::string_view Nfc(std::string_view text, std::string* storage) {
  // Below U+0300, whose first byte is 0xCC, everything is in form C.
  const auto may_change = [](char byte) { return static_cast<uint8_t>(byte) >= 0xCC; };
  if (std::none_of(text.begin(), text.end(), may_change)) return text;
  const Tables& tables = Tables::Get();
  storage->clear();
  std::vector<uint32_t> codes;
  size_t copied = 0;  // what is before it is in *storage
  size_t start = 0;   // of the last stable character, or behind invalid bytes
  for (size_t at = 0; at < text.size();) {
    const Utf8Char c = DecodeUtf8(text, at);
    const size_t next = at + c.length;
    if (c.code == kInvalidCode) {
      start = next;
    } else if (tables.IsStable(c.code)) {
      start = at;
    } else {
      size_t end = next;
      while (end < text.size()) {
        const Utf8Char follower = DecodeUtf8(text, end);
        if (follower.code == kInvalidCode || tables.IsStable(follower.code)) break;
        end += follower.length;
      }
      storage->append(text.substr(copied, start - copied));
      AppendNormalized(tables, text.substr(start, end - start), &codes, storage);
      copied = start = at = end;
      continue;
    }
    at = next;
  }
  if (copied == 0) return text;
  storage->append(text.substr(copied));
  return *storage;
}

}  // namespace tensorcache::tokenizer
