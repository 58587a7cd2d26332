#include "runtime/stop_strings.h"

#include <algorithm>
#include <utility>

#include "core/text.h"

namespace tensorcache {

StopStrings::Matcher::Matcher(std::string text) : string(std::move(text)), borders(string.size(), 0) {
  // The borders of the string are the matches of the string within itself, from its second byte on.
  for (size_t i = 1; i < string.size(); ++i) {
    Push(string[i]);
    borders[i] = matched;
  }
  matched = 0;
}

bool StopStrings::Matcher::Push(char byte) {
  while (matched > 0 && string[matched] != byte) matched = borders[matched - 1];
  if (string[matched] == byte) ++matched;
  return matched == string.size();
}

Result<StopStrings> StopStrings::Create(std::vector<std::string> strings) {
  StopStrings result;
  for (std::string& string : strings) {
    if (string.empty()) return InvalidArgument("a stop string is empty; give it at least one character");
    if (!IsValidUtf8(string)) return InvalidArgument("stop string " + Quoted(string) + " is not UTF-8");
    result.matchers_.emplace_back(std::move(string));
  }
  return result;
}

std::string StopStrings::Push(std::string_view piece) {
  if (stopped_) return {};
  for (const char byte : piece) {
    held_ += byte;
    size_t stop_length = 0;
    for (Matcher& matcher : matchers_) {
      if (matcher.Push(byte)) stop_length = std::max(stop_length, matcher.string.size());
    }
    if (stop_length > 0) {
      stopped_ = true;
      held_.resize(held_.size() - stop_length);
      return std::exchange(held_, {});
    }
  }
  size_t keep = 0;
  for (const Matcher& matcher : matchers_) keep = std::max(keep, matcher.matched);
  std::string shown = held_.substr(0, held_.size() - keep);
  held_.erase(0, held_.size() - keep);
  return shown;
}

std::string StopStrings::Finish() {
  for (Matcher& matcher : matchers_) matcher.matched = 0;
  return std::exchange(held_, {});
}

}  // namespace tensorcache
