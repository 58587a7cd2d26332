// Texts that hide a sentence, the needle, and ask for what it said. A text is
//
//   intro, haystack with the needle at one of its borders, question, answer
//
// The sentences are public: those of passkey retrieval (Mohtashami and Jaggi 2023, arXiv:2305.16300) and of the single needles of
// RULER (Hsieh et al. 2024, arXiv:2404.06654), one text a task:
//
//   passkey        five digits in lines of "The grass is green. The sky is blue. ..."
//   niah_single_1  seven digits, under a key of two words, in the same lines
//   niah_single_2  seven digits, under a key, in essays
//   niah_single_3  a UUID, under a key, in essays
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/rng.h"
#include "tensorcache/status.h"

namespace tensorcache::data {

// kAll stands for each of the others, where a task is chosen; no text is of it.
enum class NeedleTask { kAll, kPasskey, kSingle1, kSingle2, kSingle3 };
constexpr auto EnumNames(NeedleTask) {
  return std::to_array<std::pair<NeedleTask, std::string_view>>({{NeedleTask::kAll, "all"},
                                                                 {NeedleTask::kPasskey, "passkey"},
                                                                 {NeedleTask::kSingle1, "niah_single_1"},
                                                                 {NeedleTask::kSingle2, "niah_single_2"},
                                                                 {NeedleTask::kSingle3, "niah_single_3"}});
}
inline constexpr std::array kNeedleTasks = {NeedleTask::kPasskey, NeedleTask::kSingle1, NeedleTask::kSingle2,
                                            NeedleTask::kSingle3};
constexpr bool HasEssays(NeedleTask task) { return task == NeedleTask::kSingle2 || task == NeedleTask::kSingle3; }

// What is hidden: a value, and for all tasks but passkey the key that it is asked for by.
struct Needle {
  std::string key, value;
};
Needle DrawNeedle(NeedleTask task, Rng* rng);

// The sentences around a haystack.
struct NeedleSentences {
  std::string intro;     // ends its line
  std::string needle;    // without what separates it from its neighbours
  std::string question;  // up to the value: "... is "
  std::string answer;    // the value and a full stop

  // Of a text without a haystack; the needle has a separator behind it.
  int64_t size() const {
    return std::ssize(intro) + std::ssize(needle) + 1 + std::ssize(question) + std::ssize(answer);
  }
};
NeedleSentences SentencesOf(NeedleTask task, const Needle& needle);
// The size of the task's sentences with the longest key.
int64_t MostSentenceBytes(NeedleTask task);
int64_t AnswerBytes(NeedleTask task);

// Text in which needles are hidden. Whatever stands before a border ends with a separator.
struct Haystack {
  std::string text;
  std::vector<int64_t> borders;  // ascending: where a sentence starts, 0 and the end of the text
  char separator = ' ';

  int64_t BorderNear(double depth) const;  // the border nearest to that part of the text, 0 to 1
};
// Lines that repeat, cut to `bytes`.
Haystack MakeNoise(int64_t bytes);
// The bytes of an essay from `first` on, as many as `out` holds.
using ReadEssay = std::function<Status(int64_t first, std::span<int32_t> out)>;
// `bytes` of an essay that has `size` of them, from the first sentence behind `start` on; behind its end it begins again. All white
// space is single spaces, as in RULER.
Result<Haystack> MakeEssay(const ReadEssay& read, int64_t size, int64_t start, int64_t bytes);

}  // namespace tensorcache::data
