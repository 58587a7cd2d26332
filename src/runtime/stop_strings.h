// Ends a stream of text at the first of some strings, without ever showing a part of one.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "tensorcache/status.h"

namespace tensorcache {

// Text comes in pieces of any length, cut anywhere. The result does not depend on the cuts: the text ends before the
// stop string whose last byte comes first; if several end with that byte, before the longest.
//
// At most the length of the longest stop string less one is held back. Characters are not torn: stop strings are UTF-8,
// so what is held back begins where a character does. O(number of stop strings) a byte.
class StopStrings {
 public:
  // None at all is fine; an empty string, or one that is not UTF-8, is an error.
  static Result<StopStrings> Create(std::vector<std::string> strings);

  // The text that may be shown now: all that has come and cannot be the beginning of a stop string any more. Once a
  // stop string is complete: what stood before it, and then nothing more.
  std::string Push(std::string_view piece);
  // The end of the text: what was held back.
  std::string Finish();

  bool stopped() const { return stopped_; }

 private:
  // Knuth, Morris and Pratt's automaton.
  struct Matcher {
    explicit Matcher(std::string text);
    // Returns whether the byte completes the string.
    bool Push(char byte);

    std::string string;
    std::vector<size_t>
        borders;         // [n]: the longest proper prefix of the first n + 1 bytes that is their suffix as well
    size_t matched = 0;  // the longest prefix of the string that the text so far ends with
  };

  std::vector<Matcher> matchers_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace tensorcache
