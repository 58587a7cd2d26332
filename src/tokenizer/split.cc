#include "tokenizer/split.h"

#include <fmt/format.h>

#include <string>
#include <utility>

#include "core/text.h"

namespace tensorcache::tokenizer {
namespace {

// The first of each pattern is the one PatternRegex gives.
constexpr std::pair<std::string_view, SplitPattern> kPatterns[] = {
    {R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)", SplitPattern::kGpt2},
    {R"('(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)", SplitPattern::kGpt2},
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|)"
     R"(\s+(?!\S)|\s+)",
     SplitPattern::kLlama3},
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|)"
     R"(\s+(?!\S)|\s+)",
     SplitPattern::kQwen2},
};

bool IsNewline(char byte) { return byte == '\r' || byte == '\n'; }

// Bytes of the contraction ('s 't 're 've 'm 'll 'd) at `at`, where there is an apostrophe; 0 if there is none.
template <bool kAnyCase>
size_t ContractionLength(std::string_view text, size_t at) {
  const auto letter = [&](size_t i) -> char {
    if (at + i >= text.size()) return 0;
    const char byte = text[at + i];
    return kAnyCase && byte >= 'A' && byte <= 'Z' ? static_cast<char>(byte | 0x20) : byte;
  };
  const char first = letter(1), second = letter(2);
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return 2;
  if ((first == 'r' || first == 'v') && second == 'e') return 3;
  if (first == 'l' && second == 'l') return 3;
  // The long s, U+017F, is an s when case does not matter.
  if (kAnyCase && text.substr(at + 1).starts_with("\u017F")) return 3;
  return 0;
}

}  // namespace

std::string_view PatternRegex(SplitPattern pattern) {
  for (const auto& [regex, named] : kPatterns) {
    if (named == pattern) return regex;
  }
  return {};
}

Result<SplitPattern> FindPattern(std::string_view regex) {
  for (const auto& [known, pattern] : kPatterns) {
    if (known == regex) return pattern;
  }
  return Unsupported(
      fmt::format("the pre-tokenizer pattern {} is not one of those of GPT-2, Llama 3 and Qwen 2", Quoted(regex)));
}

Splitter::Splitter(SplitPattern pattern)
    : classes_(CharClasses::Get()), pattern_(pattern), max_digits_(pattern == SplitPattern::kQwen2 ? 1 : 3) {}

size_t Splitter::RunEnd(CharClass kind, std::string_view text, size_t at) const {
  while (at < text.size()) {
    const Char c = At(text, at);
    if (c.kind != kind) break;
    at += c.length;
  }
  return at;
}

// \s+(?!\S)|\s+ : a run of spaces leaves its last one to the word behind it, unless it is the only one.
size_t Splitter::SpaceEnd(std::string_view text, size_t at) const {
  size_t end = at, last = at;
  while (end < text.size()) {
    const Char c = At(text, end);
    if (c.kind != CharClass::kSpace) break;
    last = end;
    end += c.length;
  }
  return end == text.size() || last == at ? end : last;
}

size_t Splitter::Gpt2WordEnd(std::string_view text, size_t at) const {
  if (text[at] == '\'') {
    if (const size_t length = ContractionLength<false>(text, at); length != 0) return at + length;
  }
  const size_t start = text[at] == ' ' && at + 1 < text.size() ? at + 1 : at;
  const Char c = At(text, start);
  if (c.kind != CharClass::kSpace) return RunEnd(c.kind, text, start + c.length);
  return SpaceEnd(text, at);
}

size_t Splitter::Llama3WordEnd(std::string_view text, size_t at) const {
  if (text[at] == '\'') {
    if (const size_t length = ContractionLength<true>(text, at); length != 0) return at + length;
  }
  const Char c = At(text, at);
  const size_t next = at + c.length;
  // [^\r\n\p{L}\p{N}]?\p{L}+
  if (c.kind == CharClass::kLetter) return RunEnd(CharClass::kLetter, text, next);
  if (c.kind != CharClass::kNumber && !IsNewline(text[at]) && Is(CharClass::kLetter, text, next)) {
    return RunEnd(CharClass::kLetter, text, next);
  }
  // \p{N}{1,3} or \p{N}
  if (c.kind == CharClass::kNumber) {
    size_t end = next;
    for (int digits = 1; digits < max_digits_ && Is(CharClass::kNumber, text, end); ++digits) {
      end += At(text, end).length;
    }
    return end;
  }
  // ` ?[^\s\p{L}\p{N}]+[\r\n]*`
  if (c.kind == CharClass::kOther || (text[at] == ' ' && Is(CharClass::kOther, text, next))) {
    size_t end = RunEnd(CharClass::kOther, text, next);
    while (end < text.size() && IsNewline(text[end])) ++end;
    return end;
  }
  // \s*[\r\n]+ : up to the last newline of the run of spaces
  const size_t end = RunEnd(CharClass::kSpace, text, next);
  for (size_t i = end; i > at; --i) {
    if (IsNewline(text[i - 1])) return i;
  }
  return SpaceEnd(text, at);
}

}  // namespace tensorcache::tokenizer
