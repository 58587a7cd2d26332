#include "data/needle_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "data/needle_words.h"

namespace tensorcache::data {
namespace {

constexpr std::string_view kNoiseLine =
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.\n";

template <size_t N>
std::string_view Draw(const std::array<std::string_view, N>& words, Rng* rng) {
  return words[rng->Below(N)];
}

// The first digit is not 0.
std::string DrawNumber(int digits, Rng* rng) {
  std::string number(1, static_cast<char>('1' + rng->Below(9)));
  while (std::ssize(number) < digits) number += static_cast<char>('0' + rng->Below(10));
  return number;
}

// Of version 4: random, but for the version and two bits of the variant.
std::string DrawUuid(Rng* rng) {
  constexpr std::string_view kForm = "xxxxxxxx-xxxx-4xxx-yxxx-xxxxxxxxxxxx", kHex = "0123456789abcdef";
  std::string uuid;
  for (const char c : kForm) {
    uuid += c == 'x' ? kHex[rng->Below(16)] : c == 'y' ? kHex[8 + rng->Below(4)] : c;
  }
  return uuid;
}

NeedleSentences PasskeySentences(const std::string& value) {
  return {
      .intro =
          "There is an important info hidden inside a lot of irrelevant text. Find it and memorize them. I will quiz "
          "you about the important information there.\n",
      .needle = fmt::format("The pass key is {0}. Remember it. {0} is the pass key.", value),
      .question = "What is the pass key? The pass key is ",
      .answer = value + "."};
}

NeedleSentences RulerSentences(std::string_view kind, const Needle& needle) {
  return {
      .intro = fmt::format("A special magic {0} is hidden within the following text. Make sure to memorize it. I will "
                           "quiz you about the {0} afterwards.\n",
                           kind),
      .needle = fmt::format("One of the special magic {}s for {} is: {}.", kind, needle.key, needle.value),
      .question = fmt::format("What is the special magic {0} for {1} mentioned in the provided text? The special magic "
                              "{0} for {1} mentioned in the provided text is ",
                              kind, needle.key),
      .answer = needle.value + "."};
}

template <size_t N>
std::string_view Longest(const std::array<std::string_view, N>& words) {
  return *std::ranges::max_element(words, {}, &std::string_view::size);
}

Needle LongestNeedle(NeedleTask task) {
  Rng rng(0);
  Needle needle = DrawNeedle(task, &rng);  // values of a task have one length
  if (task != NeedleTask::kPasskey) {
    needle.key = fmt::format("{}-{}", Longest(kNeedleAdjectives), Longest(kNeedleNouns));
  }
  return needle;
}

bool IsSpace(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

// Takes the bytes of an essay one by one, and keeps those behind the first sentence's end.
class EssayWriter {
 public:
  explicit EssayWriter(int64_t bytes) : bytes_(bytes) {}

  bool full() const { return std::ssize(haystack_.text) >= bytes_; }

  void Add(char c) {
    if (IsSpace(c)) {
      if (spaced_) return;
      spaced_ = true;
      if (started_) haystack_.text += ' ';
      if (sentence_ended_) StartSentence();
      return;
    }
    spaced_ = false;
    if (c == '.' || c == '!' || c == '?') {
      sentence_ended_ = true;
    } else if (!IsClosing(c)) {
      sentence_ended_ = false;
    }
    // Text without any sentence starts somewhere.
    if (!started_ && ++skipped_ > kMostSkipped) StartSentence();
    if (started_) haystack_.text += c;
  }

  Haystack Take() && { return std::move(haystack_); }

 private:
  static constexpr int64_t kMostSkipped = 4096;

  // What may stand between a sentence's full stop and the space behind it: quotes, too, of which some have several bytes.
  static bool IsClosing(char c) { return c == '"' || c == '\'' || c == ')' || static_cast<uint8_t>(c) >= 0x80; }

  void StartSentence() {
    started_ = true;
    sentence_ended_ = false;
    haystack_.borders.push_back(std::ssize(haystack_.text));
  }

  int64_t bytes_;
  Haystack haystack_;
  bool started_ = false, spaced_ = false, sentence_ended_ = false;
  int64_t skipped_ = 0;
};

// A text of exactly `bytes` ends with a separator and has borders at both ends.
void Finish(int64_t bytes, Haystack* haystack) {
  haystack->text.resize(static_cast<size_t>(bytes));
  if (bytes > 0) haystack->text.back() = haystack->separator;
  std::erase_if(haystack->borders, [&](int64_t border) { return border >= bytes; });
  if (haystack->borders.empty() || haystack->borders[0] != 0) haystack->borders.insert(haystack->borders.begin(), 0);
  if (bytes > 0) haystack->borders.push_back(bytes);
}

}  // namespace

Needle DrawNeedle(NeedleTask task, Rng* rng) {
  if (task == NeedleTask::kPasskey) return {.key = "", .value = DrawNumber(5, rng)};
  const std::string_view adjective = Draw(kNeedleAdjectives, rng), noun = Draw(kNeedleNouns, rng);
  return {.key = fmt::format("{}-{}", adjective, noun),
          .value = task == NeedleTask::kSingle3 ? DrawUuid(rng) : DrawNumber(7, rng)};
}

NeedleSentences SentencesOf(NeedleTask task, const Needle& needle) {
  if (task == NeedleTask::kPasskey) return PasskeySentences(needle.value);
  return RulerSentences(task == NeedleTask::kSingle3 ? "uuid" : "number", needle);
}

int64_t MostSentenceBytes(NeedleTask task) { return SentencesOf(task, LongestNeedle(task)).size(); }

int64_t AnswerBytes(NeedleTask task) { return std::ssize(SentencesOf(task, LongestNeedle(task)).answer); }

int64_t Haystack::BorderNear(double depth) const {
  const double wanted = depth * static_cast<double>(text.size());
  return *std::ranges::min_element(borders, {}, [&](int64_t b) { return std::abs(static_cast<double>(b) - wanted); });
}

Haystack MakeNoise(int64_t bytes) {
  Haystack haystack{.separator = '\n'};
  while (std::ssize(haystack.text) < bytes) {
    haystack.borders.push_back(std::ssize(haystack.text));
    haystack.text += kNoiseLine;
  }
  Finish(bytes, &haystack);
  return haystack;
}

Result<Haystack> MakeEssay(const ReadEssay& read, int64_t size, int64_t start, int64_t bytes) {
  TC_CHECK(size > 0 && start >= 0 && start < size);
  constexpr int64_t kPiece = 2048;
  EssayWriter writer(bytes);
  std::vector<int32_t> piece;
  // The end of an essay is the end of a sentence. White space alone makes no text, however often it is read.
  for (int64_t at = start, blank = 0; !writer.full() && blank < size;) {
    piece.resize(static_cast<size_t>(std::min(kPiece, size - at)));
    TC_RETURN_IF_ERROR(read(at, piece));
    for (const int32_t token : piece) {
      const auto c = static_cast<char>(token);
      blank = IsSpace(c) ? blank + 1 : 0;
      if (!writer.full()) writer.Add(c);
    }
    at += std::ssize(piece);
    if (at == size) {
      writer.Add(' ');
      at = 0;
    }
  }
  if (!writer.full()) return InvalidArgument("the text that needles are hidden in is white space alone");
  Haystack haystack = std::move(writer).Take();
  Finish(bytes, &haystack);
  return haystack;
}

}  // namespace tensorcache::data
