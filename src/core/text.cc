#include "core/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <utility>
#include <vector>

namespace tensorcache {
namespace {

// Bytes of the well-formed UTF-8 sequence that `text` (not empty) starts with; 0 if it does not start with one.
size_t SequenceLength(std::string_view text) {
  const auto byte = [&](size_t i) { return i < text.size() ? static_cast<uint8_t>(text[i]) : 0; };
  const auto continues = [&](size_t i) { return (byte(i) & 0xC0) == 0x80; };
  const int lead = byte(0), second = byte(1);
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) return continues(1) ? 2 : 0;
  if ((lead & 0xF0) == 0xE0) {
    if (lead == 0xE0 && second < 0xA0) return 0;   // overlong
    if (lead == 0xED && second >= 0xA0) return 0;  // surrogate
    return continues(1) && continues(2) ? 3 : 0;
  }
  if (lead >= 0xF0 && lead <= 0xF4) {
    if (lead == 0xF0 && second < 0x90) return 0;   // overlong
    if (lead == 0xF4 && second >= 0x90) return 0;  // above U+10FFFF
    return continues(1) && continues(2) && continues(3) ? 4 : 0;
  }
  return 0;
}

}  // namespace

int EditDistance(std::string_view a, std::string_view b) {
  // Rows i-2, i-1 and i of the table of distances between prefixes.
  std::vector<int> before(b.size() + 1), previous(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = static_cast<int>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    std::swap(before, previous);
    std::swap(previous, row);
    row[0] = static_cast<int>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({previous[j] + 1, row[j - 1] + 1, previous[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) row[j] = std::min(row[j], before[j - 2] + 1);
    }
  }
  return row[b.size()];
}

std::optional<std::string_view> NearestName(std::string_view name, std::span<const std::string_view> candidates) {
  constexpr size_t kLongest = 256;  // the distance costs the product of the lengths
  if (name.size() > kLongest) return std::nullopt;
  const int length = static_cast<int>(name.size());
  int best = std::min(length, (length + 2) / 3 + 1);  // exclusive
  std::optional<std::string_view> nearest;
  for (const std::string_view candidate : candidates) {
    if (std::abs(static_cast<int64_t>(candidate.size()) - length) >= best) continue;
    if (const int distance = EditDistance(name, candidate); distance < best) {
      best = distance;
      nearest = candidate;
    }
  }
  return nearest;
}

std::string DidYouMean(std::string_view name, std::span<const std::string_view> candidates) {
  const auto nearest = NearestName(name, candidates);
  return nearest ? fmt::format("; did you mean {}?", Quoted(*nearest)) : "";
}

std::string DidYouMeanOr(std::string_view name, std::span<const std::string_view> candidates,
                         std::string_view there_are) {
  const std::string hint = DidYouMean(name, candidates);
  return hint.empty() ? fmt::format("; {} {}", there_are, fmt::join(candidates, ", ")) : hint;
}

size_t Utf8ErrorOffset(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    const size_t length = SequenceLength(text.substr(at));
    if (length == 0) break;
    at += length;
  }
  return at;
}

std::string Quoted(std::string_view text) {
  constexpr size_t kLongest = 120;
  std::string out = "'";
  size_t at = 0;
  while (at < text.size() && out.size() < kLongest) {
    const size_t length = SequenceLength(text.substr(at));
    const auto byte = static_cast<uint8_t>(text[at]);
    if (length == 0 || byte < 0x20 || byte == 0x7F) {
      out += fmt::format("\\x{:02x}", byte);
      ++at;
    } else {
      out += text.substr(at, length);
      at += length;
    }
  }
  return out + (at < text.size() ? "...'" : "'");
}

std::string_view FirstLine(std::string_view text) { return text.substr(0, text.find('\n')); }

}  // namespace tensorcache
