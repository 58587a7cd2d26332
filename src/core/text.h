// Small text helpers for error messages and for checking text from outside.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace tensorcache {

// The number of single-byte insertions, deletions, replacements and swaps of neighbours that turn `a` into `b`.
int EditDistance(std::string_view a, std::string_view b);

// The candidate a user most likely meant by `name`: the one with the smallest edit distance (the first of equals), if
// that is at most about a third of the name.
std::optional<std::string_view> NearestName(std::string_view name, std::span<const std::string_view> candidates);

// "; did you mean 'window'?", or "" when no candidate is near.
std::string DidYouMean(std::string_view name, std::span<const std::string_view> candidates);
// The same, or "; there are full, window, ..." with `there_are` in front of all candidates.
std::string DidYouMeanOr(std::string_view name, std::span<const std::string_view> candidates,
                         std::string_view there_are);

// RFC 3629: no overlong forms, no surrogates, nothing above U+10FFFF. The offset of the first bad byte, or text.size().
size_t Utf8ErrorOffset(std::string_view text);
inline bool IsValidUtf8(std::string_view text) { return Utf8ErrorOffset(text) == text.size(); }

// `text` in single quotes, fit for one line of a message: long text is cut, control and non-UTF-8 bytes become \xNN.
std::string Quoted(std::string_view text);

// What stands before the first line break: exceptions of other libraries go on with a stack trace.
std::string_view FirstLine(std::string_view text);

}  // namespace tensorcache
