#include "data/needle_task.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "core/config.h"
#include "data/data_testing.h"
#include "data/needle_words.h"

namespace tensorcache::data {
namespace {

const std::string kNoise =
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.\n";

// Sentences that a number tells apart: those of training have other words than those of validation.
std::string Story(const std::string& word, int sentences) {
  std::string text;
  for (int i = 0; i < sentences; ++i)
    text += word + " number \n\t " + std::to_string(i) + (i % 3 == 0 ? "!\"\n" : ".  ");
  return text;
}

class NeedleTaskTest : public DataTest {
 protected:
  Corpus Essays() const {
    const auto range = [&](const std::string& name, const std::string& text) {
      const std::vector<int32_t> bytes(text.begin(), text.end());
      const auto file = Tokens(name, 256, {bytes});
      return TokenRange{.file = file, .begin = 0, .end = file->tokens()};
    };
    return {.train = range("train", Story("Alpha", 500)), .valid = range("valid", Story("Omega", 500))};
  }

  std::unique_ptr<BatchSource> Source(const NeedleConfig& config, uint64_t seed = 1) const {
    auto source = MakeNeedleSource(config, Essays(), seed);
    EXPECT_TRUE(source.ok()) << source.status().message();
    return std::move(source).value();
  }
};

Batch Fill(const BatchSource& source, Split split, int64_t step, int64_t first_row, int64_t rows) {
  Batch batch;
  const Status status = source.Fill(split, step, first_row, rows, &batch);
  EXPECT_TRUE(status.ok()) << status.message();
  return batch;
}

std::string TextOfRow(const Batch& batch, int64_t row) {
  const auto* begin = batch.inputs.data() + row * batch.length;
  return {begin, begin + batch.length};
}

// The targets of a row: where they begin, and what they are. They follow each other, and are the inputs one further on.
struct Answer {
  size_t at = 0;
  std::string text;
};
std::vector<Answer> AnswersOf(const Batch& batch, int64_t row) {
  std::vector<Answer> answers;
  const std::string text = TextOfRow(batch, row);
  for (size_t t = 0; t < text.size(); ++t) {
    const int32_t target = batch.targets[static_cast<size_t>(row * batch.length) + t];
    if (target < 0) {
      EXPECT_EQ(target, -1);
      continue;
    }
    if (answers.empty() || answers.back().at + answers.back().text.size() != t + 1) answers.push_back({.at = t + 1});
    answers.back().text += static_cast<char>(target);
    EXPECT_LT(t + 1, text.size());
    EXPECT_EQ(static_cast<char>(target), text[t + 1]);
  }
  return answers;
}

// A text as the definition promises it, taken apart.
struct Parts {
  NeedleTask task = NeedleTask::kAll;
  std::string key, value, before, after;
};
// What stands between the first `left` and the first `right` behind it.
std::string Between(const std::string& text, const std::string& left, const std::string& right) {
  const size_t begin = text.find(left) + left.size();
  return text.substr(begin, text.find(right, begin) - begin);
}
Parts ParseText(const std::string& text) {
  Parts parts;
  std::string intro, needle, question;
  if (text.starts_with("There is")) {
    parts.task = NeedleTask::kPasskey;
    parts.value = Between(text, "The pass key is ", ". Remember");
    intro =
        "There is an important info hidden inside a lot of irrelevant text. Find it and memorize them. I will quiz you "
        "about "
        "the important information there.\n";
    needle = "The pass key is " + parts.value + ". Remember it. " + parts.value + " is the pass key.";
    question = "What is the pass key? The pass key is ";
  } else {
    const std::string kind = text.starts_with("A special magic uuid") ? "uuid" : "number";
    parts.key = Between(text, "One of the special magic " + kind + "s for ", " is: ");
    parts.value = Between(text, parts.key + " is: ", ".");
    intro = "A special magic " + kind +
            " is hidden within the following text. Make sure to memorize it. I will quiz you about the " + kind +
            " afterwards.\n";
    needle = "One of the special magic " + kind + "s for " + parts.key + " is: " + parts.value + ".";
    const std::string which = " special magic " + kind + " for " + parts.key + " mentioned in the provided text";
    question = "What is the" + which + "? The" + which + " is ";
    parts.task = kind == "uuid" ? NeedleTask::kSingle3 : NeedleTask::kSingle2;
  }
  const size_t at = text.find(needle), behind = at + needle.size() + 1, asked = text.find(question);
  if (at == std::string::npos || asked == std::string::npos || at < intro.size() || asked < behind) {
    ADD_FAILURE() << "no text of any task: " << text;
    return parts;
  }
  parts.before = text.substr(intro.size(), at - intro.size());
  parts.after = text.substr(behind, asked - behind);
  const bool essay = (parts.before + parts.after).find_first_of("AO") == 0;  // the first letters of stories
  if (parts.task == NeedleTask::kSingle2 && !essay) parts.task = NeedleTask::kSingle1;
  const char separator = essay && asked > behind ? ' ' : '\n';
  EXPECT_EQ(text, intro + parts.before + needle + separator + parts.after + question + parts.value + ".");
  EXPECT_EQ(text[asked - 1], '\n');
  return parts;
}

std::string Repeated(const std::string& text, size_t size) {
  std::string repeated;
  while (repeated.size() < size) repeated += text;
  return repeated.substr(0, size);
}

void ExpectEssay(const std::string& text, const std::string& word) {
  ASSERT_FALSE(text.empty());
  EXPECT_TRUE(text.starts_with(word + " number ")) << text;  // a sentence starts it
  static const std::regex wide("\\s\\s|[\n\t]");
  EXPECT_FALSE(std::regex_search(text.substr(0, text.size() - 1), wide)) << text;
  std::smatch first;
  ASSERT_TRUE(std::regex_search(text, first, std::regex("number (\\d+)")));
  int next = std::stoi(first[1]);
  std::string expected;
  for (; expected.size() < text.size(); next = (next + 1) % 500) {
    expected += word + " number " + std::to_string(next) + (next % 3 == 0 ? "!\" " : ". ");
  }
  EXPECT_EQ(text.substr(0, text.size() - 1), expected.substr(0, text.size() - 1));  // the last byte ends the line
}

TEST_F(NeedleTaskTest, EveryRowIsATextOfItsTask) {
  for (const NeedleTask task : kNeedleTasks) {
    for (const int64_t length : {450, 1000, 7000}) {
      const auto source = Source({.task = task, .length = length});
      EXPECT_EQ(source->length(), length);
      EXPECT_EQ(source->vocab_size(), 256);
      for (const Split split : {Split::kTrain, Split::kValid}) {
        const Batch batch = Fill(*source, split, 3, 2, 6);
        EXPECT_EQ(batch.fresh, std::vector<uint8_t>(6, 1));
        for (int64_t row = 0; row < batch.rows; ++row) {
          const std::string text = TextOfRow(batch, row);
          const Parts parts = ParseText(text);
          ASSERT_EQ(parts.task, task) << text;
          const std::vector<Answer> answers = AnswersOf(batch, row);
          ASSERT_EQ(answers.size(), 1u);
          EXPECT_EQ(answers[0].text, parts.value + ".");
          EXPECT_EQ(answers[0].at + answers[0].text.size(), text.size());
          EXPECT_EQ(std::ssize(answers[0].text), AnswerBytes(task));
          std::string haystack = parts.before + parts.after;
          ASSERT_FALSE(haystack.empty());
          if (HasEssays(task)) {
            ExpectEssay(haystack, split == Split::kTrain ? "Alpha" : "Omega");
          } else {
            EXPECT_EQ(haystack.substr(0, haystack.size() - 1),
                      Repeated(kNoise, haystack.size()).substr(0, haystack.size() - 1));
          }
        }
      }
    }
  }
}

TEST_F(NeedleTaskTest, ValuesHaveTheirForm) {
  const std::map<NeedleTask, std::string> forms = {
      {NeedleTask::kPasskey, "[1-9]\\d{4}"},
      {NeedleTask::kSingle1, "[1-9]\\d{6}"},
      {NeedleTask::kSingle2, "[1-9]\\d{6}"},
      {NeedleTask::kSingle3, "[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"}};
  for (const auto& [task, form] : forms) {
    std::set<std::string> values, keys;
    for (uint64_t i = 0; i < 200; ++i) {
      Rng rng(5, i);
      const Needle needle = DrawNeedle(task, &rng);
      EXPECT_TRUE(std::regex_match(needle.value, std::regex(form))) << needle.value;
      values.insert(needle.value);
      keys.insert(needle.key);
      EXPECT_LE(SentencesOf(task, needle).size(), MostSentenceBytes(task));
    }
    EXPECT_GT(values.size(), 190u);                              // 200 of 90,000 and more
    EXPECT_EQ(keys.size() > 190, task != NeedleTask::kPasskey);  // 200 of over 20,000
  }
}

TEST_F(NeedleTaskTest, WordsAreManyDifferentAndPlain) {
  const auto check = [](const auto& words) {
    EXPECT_GE(words.size(), 150u);
    EXPECT_EQ(std::set<std::string_view>(words.begin(), words.end()).size(), words.size());
    for (const std::string_view word : words) {
      EXPECT_TRUE(std::ranges::all_of(word, [](char c) { return c >= 'a' && c <= 'z'; })) << word;
    }
  };
  check(kNeedleAdjectives);
  check(kNeedleNouns);
}

TEST_F(NeedleTaskTest, DepthIsWhereTheNeedleIsAndNothingElse) {
  for (const NeedleTask task : kNeedleTasks) {
    std::map<double, Parts> by_depth;
    for (const double depth : {0.0, 0.25, 0.5, 0.75, 1.0}) {
      const auto source = Source({.task = task, .length = 9000, .depth = depth});
      const Parts parts = ParseText(TextOfRow(Fill(*source, Split::kValid, 0, 4, 1), 0));
      const double size = static_cast<double>(parts.before.size() + parts.after.size());
      EXPECT_NEAR(static_cast<double>(parts.before.size()) / size, depth, 0.01);
      EXPECT_TRUE(parts.before.empty() || parts.before.back() == ' ' || parts.before.back() == '\n');
      by_depth[depth] = parts;
    }
    const Parts& first = by_depth[0];
    EXPECT_TRUE(first.before.empty());
    EXPECT_TRUE(by_depth[1].after.empty());
    for (const auto& [depth, parts] : by_depth) {
      EXPECT_EQ(parts.key, first.key);
      EXPECT_EQ(parts.value, first.value);
      const std::string text = parts.before + parts.after;
      EXPECT_EQ(text.substr(0, text.size() - 1), first.after.substr(0, text.size() - 1));
    }
  }
}

TEST_F(NeedleTaskTest, DepthIsUniformWhereNoneIsGiven) {
  const auto source = Source({.task = NeedleTask::kSingle1, .length = 20000}, 3);
  std::vector<double> depths;
  for (int64_t row = 0; row < 400; ++row) {
    const Parts parts = ParseText(TextOfRow(Fill(*source, Split::kTrain, 0, row, 1), 0));
    depths.push_back(static_cast<double>(parts.before.size()) /
                     static_cast<double>(parts.before.size() + parts.after.size()));
  }
  std::ranges::sort(depths);
  // Kolmogorov and Smirnov: above 1.95 / sqrt(400) in one of a thousand cases.
  for (size_t i = 0; i < depths.size(); ++i) EXPECT_NEAR(depths[i], static_cast<double>(i) / 400.0, 0.0975);
}

TEST_F(NeedleTaskTest, ARowOfSeveralTextsAsksInEach) {
  const NeedleConfig config{.length = 2048, .min_length = 200};
  const auto source = Source(config);
  std::map<NeedleTask, int> seen;
  double answers = 0, texts = 0;
  size_t shortest = 5000, longest = 0;
  constexpr int64_t kRows = 300;
  const Batch batch = Fill(*source, Split::kTrain, 0, 0, kRows);
  for (int64_t row = 0; row < kRows; ++row) {
    const std::string text = TextOfRow(batch, row);
    size_t begin = 0;
    for (const Answer& answer : AnswersOf(batch, row)) {
      const size_t end = answer.at + answer.text.size();
      const Parts parts = ParseText(text.substr(begin, end - begin));
      EXPECT_EQ(parts.value + ".", answer.text);
      ++seen[parts.task];
      shortest = std::min(shortest, end - begin);
      longest = std::max(longest, end - begin);
      answers += static_cast<double>(answer.text.size());
      ++texts;
      begin = end;
    }
    EXPECT_GT(begin, 0u);
    const std::string rest = text.substr(begin);
    if (!rest.empty()) {
      EXPECT_EQ(rest.substr(0, rest.size() - 1), Repeated(kNoise, rest.size() - 1));
    }
    EXPECT_LT(rest.size(), 500u);
  }
  EXPECT_EQ(seen.size(), 4u);
  EXPECT_GT(texts, 2.0 * kRows);
  EXPECT_LT(shortest, 300u);
  EXPECT_GT(longest, 1500u);
  EXPECT_NEAR(answers / kRows, config.AnswersPerRow(), 4);  // 37 for a UUID, of which a row has about one
}

TEST_F(NeedleTaskTest, TheFirstStepsAreShortPasskeys) {
  const NeedleConfig config{.length = 1100, .min_length = 300, .passkey_steps = 5},
      without{.length = 1100, .min_length = 300};
  const auto source = Source(config), plain = Source(without);
  const Batch first = Fill(*source, Split::kTrain, 4, 0, 3);
  for (int64_t row = 0; row < first.rows; ++row) {
    const std::string text = TextOfRow(first, row);
    const auto answers = AnswersOf(first, row);
    EXPECT_EQ(std::ssize(answers), 1100 / MostSentenceBytes(NeedleTask::kPasskey));
    size_t begin = 0;
    for (const Answer& answer : answers) {
      const Parts parts = ParseText(text.substr(begin, answer.at + answer.text.size() - begin));
      EXPECT_EQ(parts.task, NeedleTask::kPasskey);
      EXPECT_EQ(parts.before + parts.after, "");
      EXPECT_EQ(parts.value + ".", answer.text);
      begin = answer.at + answer.text.size();
    }
  }
  EXPECT_EQ(Fill(*source, Split::kTrain, 5, 0, 3).inputs, Fill(*plain, Split::kTrain, 5, 0, 3).inputs);
  EXPECT_EQ(Fill(*source, Split::kValid, 0, 0, 3).inputs, Fill(*plain, Split::kValid, 0, 0, 3).inputs);
}

TEST_F(NeedleTaskTest, RowsAreAPureFunctionOfSeedSplitStepAndRow) {
  const NeedleConfig config{.length = 700, .min_length = 250};
  const auto source = Source(config, 9), again = Source(config, 9), other = Source(config, 10);
  const Batch batch = Fill(*source, Split::kTrain, 5, 0, 4);
  const Batch third = Fill(*again, Split::kTrain, 5, 2, 1);
  EXPECT_EQ(TextOfRow(batch, 2), TextOfRow(third, 0));
  std::set<std::string> rows;
  for (int64_t row = 0; row < 4; ++row) rows.insert(TextOfRow(batch, row));
  rows.insert(TextOfRow(Fill(*source, Split::kTrain, 6, 0, 1), 0));
  rows.insert(TextOfRow(Fill(*source, Split::kValid, 5, 0, 1), 0));
  rows.insert(TextOfRow(Fill(*other, Split::kTrain, 5, 0, 1), 0));
  EXPECT_EQ(rows.size(), 7u);
}

TEST_F(NeedleTaskTest, TextWithoutSentencesIsAHaystackAllTheSame) {
  for (const std::string text : {"x", "word ", "no stop at all, only a line that goes on and on\n", "?!?!?! . . ."}) {
    const ReadEssay read = [&](int64_t first, std::span<int32_t> out) {
      for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<uint8_t>(text[static_cast<size_t>(first) + i]);
      return OkStatus();
    };
    const auto haystack = MakeEssay(read, std::ssize(text), 0, 300);
    ASSERT_TRUE(haystack.ok()) << haystack.status().message();
    EXPECT_EQ(haystack->text.size(), 300u);
    EXPECT_EQ(haystack->borders.front(), 0);
    EXPECT_EQ(haystack->borders.back(), 300);
    EXPECT_TRUE(std::ranges::is_sorted(haystack->borders));
    EXPECT_EQ(MakeEssay(read, std::ssize(text), 0, 0)->text, "");
  }
  const ReadEssay blank = [](int64_t, std::span<int32_t> out) {
    std::ranges::fill(out, '\n');
    return OkStatus();
  };
  EXPECT_EQ(MakeEssay(blank, 10000, 3, 10).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(NeedleTaskTest, Errors) {
  const auto error = [](const NeedleConfig& config) {
    const Status status = ValidateNeedleConfig(config);
    return status.ok() ? "ok" : status.message();
  };
  EXPECT_EQ(error({}), "ok");
  EXPECT_EQ(error({.task = NeedleTask::kPasskey, .length = MostSentenceBytes(NeedleTask::kPasskey)}), "ok");
  EXPECT_NE(error({.length = 300}).find("data.needle.length is 300; with task all it must be "), std::string::npos);
  EXPECT_NE(error({.min_length = 513}).find("min_length is 513"), std::string::npos);
  EXPECT_NE(error({.min_length = -1}).find("min_length is -1"), std::string::npos);
  EXPECT_NE(error({.passkey_steps = -1}).find("passkey_steps is -1"), std::string::npos);
  EXPECT_NE(error({.depth = 1.5}).find("depth is 1.5"), std::string::npos);
  EXPECT_NE(error({.depth = std::nan("")}).find("depth is nan"), std::string::npos);
  EXPECT_NE(MakeNeedleSource({}, {}, 1).status().message().find("data.text.path"), std::string::npos);
  EXPECT_TRUE(MakeNeedleSource({.task = NeedleTask::kSingle1}, {}, 1).ok());

  Corpus half = Essays();
  half.valid.end = 0;
  const auto source = MakeNeedleSource({}, half, 1);
  Batch batch;
  EXPECT_TRUE((*source)->Fill(Split::kTrain, 0, 0, 1, &batch).ok());
  EXPECT_NE((*source)->Fill(Split::kValid, 0, 0, 1, &batch).message().find("data.text.valid_path"), std::string::npos);
  EXPECT_FALSE((*source)->Fill(Split::kTrain, -1, 0, 1, &batch).ok());
}

}  // namespace
}  // namespace tensorcache::data
