#include "data/text_source.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "core/rng.h"
#include "data/data_testing.h"
#include "data/text_blocks.h"

namespace tensorcache::data {
namespace {

using Lists = std::vector<std::vector<int32_t>>;

constexpr int64_t kVocab = 1 << 20;

// Documents of these sizes in which each token is its own position in the file.
Lists Counting(const std::vector<int64_t>& sizes) {
  Lists documents;
  int32_t next = 0;
  for (const int64_t size : sizes) {
    documents.emplace_back();
    for (int64_t i = 0; i < size; ++i) documents.back().push_back(next++);
  }
  return documents;
}

Batch Fill(const BatchSource& source, Split split, int64_t step, int64_t first_row, int64_t rows) {
  Batch batch;
  const Status status = source.Fill(split, step, first_row, rows, &batch);
  EXPECT_TRUE(status.ok()) << status.message();
  return batch;
}

struct Row {
  std::vector<int32_t> inputs, targets;
  bool fresh;
  bool operator==(const Row&) const = default;
};

Row RowOf(const Batch& batch, int64_t r) {
  const auto begin = r * batch.length, end = begin + batch.length;
  return {{batch.inputs.begin() + begin, batch.inputs.begin() + end},
          {batch.targets.begin() + begin, batch.targets.begin() + end},
          batch.fresh[static_cast<size_t>(r)] != 0};
}

class TextSourceTest : public DataTest {
 protected:
  Corpus MakeCorpus(const Lists& train, const Lists& valid = {}) const {
    const auto train_file = Tokens("train", kVocab, train), valid_file = Tokens("valid", kVocab, valid);
    return {.train = {.file = train_file, .end = train_file->tokens()},
            .valid = {.file = valid_file, .end = valid_file->tokens()}};
  }

  std::unique_ptr<BatchSource> Source(const Corpus& corpus, const TextSourceOptions& options) const {
    auto source = MakeTextSource(corpus, options);
    EXPECT_TRUE(source.ok()) << source.status().message();
    return std::move(source).value();
  }
};

std::string ErrorOf(const Corpus& corpus, const TextSourceOptions& options) {
  const auto source = MakeTextSource(corpus, options);
  if (source.ok()) return "ok";
  EXPECT_EQ(source.status().code(), StatusCode::kInvalidArgument);
  return source.status().message();
}

TEST(TextBlocks, SpreadVisitsEachOnceAndEvenly) {
  for (int64_t n = 1; n <= 300; ++n) {
    const int64_t stride = SpreadStride(n);
    std::set<int64_t> seen;
    for (int64_t k = 0; k < n; ++k) seen.insert(SpreadIndex(k, stride, n));
    EXPECT_EQ(std::ssize(seen), n);
  }
  // Any 100 of 10000 in a row: each tenth of the range has about 10 of them.
  const int64_t stride = SpreadStride(10000);
  for (const int64_t first : {int64_t{0}, int64_t{1234}, int64_t{1} << 50}) {
    std::vector<int> tenths(10);
    for (int64_t k = 0; k < 100; ++k) ++tenths[static_cast<size_t>(SpreadIndex(first + k, stride, 10000) / 1000)];
    for (const int count : tenths) EXPECT_NEAR(count, 10, 3);
  }
}

TEST_F(TextSourceTest, DocumentsInsideARange) {
  const auto file = Tokens("file", kVocab, Counting({5, 0, 1, 7, 2, 4}));
  const auto list = [&](int64_t begin, int64_t end, Documents documents) {
    return ListDocuments({.file = file, .begin = begin, .end = end}, documents);
  };
  using Expected = std::vector<TextDocument>;
  EXPECT_EQ(list(0, 19, Documents::kSeparate), (Expected{{0, 5}, {6, 13}, {13, 15}, {15, 19}}));
  EXPECT_EQ(list(2, 14, Documents::kSeparate), (Expected{{2, 5}, {6, 13}}));
  EXPECT_EQ(list(4, 17, Documents::kSeparate), (Expected{{6, 13}, {13, 15}, {15, 17}}));
  EXPECT_EQ(list(4, 17, Documents::kConcatenate), (Expected{{4, 17}}));
  EXPECT_EQ(list(4, 5, Documents::kConcatenate), Expected{});
  EXPECT_EQ(list(4, 4, Documents::kConcatenate), Expected{});
  EXPECT_EQ(list(4, 4, Documents::kSeparate), Expected{});
}

TEST_F(TextSourceTest, RandomRowsAreConsecutiveTokensAndUniform) {
  const std::vector<int64_t> sizes = {12, 3, 9, 8, 1, 40};
  const Corpus corpus = MakeCorpus(Counting(sizes));
  // Starts with 9 tokens after each other in one document: 4 + 0 + 1 + 0 + 0 + 32.
  for (const auto& [documents, starts] :
       std::map<Documents, size_t>{{Documents::kSeparate, 37}, {Documents::kConcatenate, 73 - 8}}) {
    const auto source =
        Source(corpus, {.seed = 3, .length = 8, .rows_per_batch = 50, .consecutive = false, .documents = documents});
    std::map<int32_t, int64_t> counts;
    for (int64_t step = 0; step < 400; ++step) {
      const Batch batch = Fill(*source, Split::kTrain, step, 0, 50);
      for (int64_t r = 0; r < 50; ++r) {
        const Row row = RowOf(batch, r);
        EXPECT_TRUE(row.fresh);
        for (int32_t t = 0; t < 8; ++t) {
          ASSERT_EQ(row.inputs[static_cast<size_t>(t)], row.inputs[0] + t);
          ASSERT_EQ(row.targets[static_cast<size_t>(t)], row.inputs[0] + t + 1);
        }
        ++counts[row.inputs[0]];
      }
    }
    ASSERT_EQ(counts.size(), starts);
    const double expected = 20000.0 / static_cast<double>(starts);
    double statistic = 0;
    for (const auto& [start, count] : counts) {
      EXPECT_TRUE(documents == Documents::kConcatenate || start < 4 || start == 15 || start >= 33) << start;
      statistic += std::pow(static_cast<double>(count) - expected, 2) / expected;
    }
    const double freedom = static_cast<double>(starts) - 1;
    EXPECT_LT(std::abs(statistic - freedom), 5 * std::sqrt(2 * freedom));
  }
}

// One epoch of consecutive order, checked against everything its comment promises.
void CheckEpoch(const BatchSource& source, const std::vector<TextDocument>& documents, int64_t rows, int64_t first_step,
                int64_t steps) {
  const int64_t L = source.length();
  const auto document_of = [&](int32_t token) {
    return *std::ranges::find_if(documents, [&](const TextDocument& d) { return token >= d.begin && token < d.end; });
  };
  std::map<int32_t, int> inputs, targets;
  std::vector<int32_t> next(static_cast<size_t>(rows), -1);  // the token each row reads on with; -1: none
  int64_t continued = 0;
  for (int64_t step = first_step; step < first_step + steps; ++step) {
    const Batch batch = Fill(source, Split::kTrain, step, 0, rows);
    EXPECT_TRUE(std::ranges::any_of(batch.targets, [](int32_t target) { return target >= 0; }));
    for (int64_t r = 0; r < rows; ++r) {
      const Row row = RowOf(batch, r);
      const auto count = std::ranges::count_if(row.targets, [](int32_t target) { return target >= 0; });
      if (count == 0) {  // only at the end of the epoch
        EXPECT_EQ(step, first_step + steps - 1);
        EXPECT_TRUE(row.fresh);
        EXPECT_EQ(row.inputs, std::vector<int32_t>(static_cast<size_t>(L), 0));
        continue;
      }
      const int32_t start = row.inputs[0];
      const TextDocument document = document_of(start);
      const int64_t size = std::min(L, document.end - start);
      EXPECT_EQ(count, std::min(size, document.end - start - 1));
      for (int64_t t = 0; t < L; ++t) {
        const auto i = static_cast<size_t>(t);
        EXPECT_EQ(row.inputs[i], t < size ? start + t : 0);
        EXPECT_EQ(row.targets[i], t < count ? start + t + 1 : -1);
        if (t < size) ++inputs[row.inputs[i]];
        if (t < count) ++targets[row.targets[i]];
      }
      // Fresh exactly where the document starts, or where the row starts in the epoch.
      EXPECT_EQ(row.fresh, start == document.begin || step == first_step);
      if (!row.fresh) {
        EXPECT_EQ(start, next[static_cast<size_t>(r)]);
        ++continued;
      }
      next[static_cast<size_t>(r)] = static_cast<int32_t>(start + size);
    }
  }
  int64_t breaks = 0;
  for (const TextDocument& document : documents) {
    for (int64_t token = document.begin; token < document.end; ++token) {
      const bool alone = token == document.end - 1 && (document.tokens() - 1) % L == 0;
      EXPECT_EQ(inputs[static_cast<int32_t>(token)], alone ? 0 : 1) << token;
      EXPECT_EQ(targets[static_cast<int32_t>(token)], token == document.begin ? 0 : 1) << token;
    }
    breaks += (document.tokens() - 2) / L;  // places between two blocks of the document
  }
  EXPECT_GE(continued, breaks - (rows - 1));  // at most one of them is lost to each border between two rows
}

int64_t BlocksOf(const std::vector<TextDocument>& documents, int64_t length) {
  int64_t blocks = 0;
  for (const TextDocument& document : documents) {
    for (int64_t begin = document.begin; begin < document.end - 1; begin += length) ++blocks;
  }
  return blocks;
}

TEST_F(TextSourceTest, ConsecutiveEpochsOfRandomCorpora) {
  Rng rng(11);
  for (int trial = 0; trial < 60; ++trial) {
    std::vector<int64_t> sizes;
    for (uint64_t n = 1 + rng.Below(12); n > 0; --n) sizes.push_back(static_cast<int64_t>(rng.Below(60)));
    sizes.push_back(2 + static_cast<int64_t>(rng.Below(200)));
    Corpus corpus = MakeCorpus(Counting(sizes));
    corpus.train.begin = static_cast<int64_t>(rng.Below(3));
    const TextSourceOptions base = {.seed = rng.NextU64(),
                                    .length = 1 + static_cast<int64_t>(rng.Below(20)),
                                    .consecutive = true,
                                    .documents = rng.Below(3) == 0 ? Documents::kConcatenate : Documents::kSeparate};
    const auto documents = ListDocuments(corpus.train, base.documents);
    const int64_t blocks = BlocksOf(documents, base.length);
    TextSourceOptions options = base;
    options.rows_per_batch = 1 + static_cast<int64_t>(rng.Below(static_cast<uint64_t>(std::min<int64_t>(blocks, 9))));
    const auto source = Source(corpus, options);
    const int64_t steps = (blocks + options.rows_per_batch - 1) / options.rows_per_batch;
    for (const int64_t epoch : {0, 1, 7}) CheckEpoch(*source, documents, options.rows_per_batch, epoch * steps, steps);
    if (HasFailure()) FAIL() << "trial " << trial;
  }
}

TEST_F(TextSourceTest, EpochsHaveOrdersOfTheirOwn) {
  const Corpus corpus = MakeCorpus(Counting(std::vector<int64_t>(50, 4)));
  const TextSourceOptions options = {
      .seed = 1, .length = 4, .rows_per_batch = 5, .consecutive = true, .documents = Documents::kSeparate};
  const auto epoch = [&](const TextSourceOptions& from, int64_t number) {
    std::vector<int32_t> starts;
    const auto source = Source(corpus, from);
    for (int64_t i = 0; i < 10; ++i) {
      const Batch batch = Fill(*source, Split::kTrain, number * 10 + i, 0, 5);
      for (int64_t r = 0; r < 5; ++r) starts.push_back(RowOf(batch, r).inputs[0]);
    }
    return starts;
  };
  TextSourceOptions other = options;
  other.seed = 2;
  EXPECT_NE(epoch(options, 0), epoch(options, 1));
  EXPECT_NE(epoch(options, 0), epoch(other, 0));
  EXPECT_EQ(epoch(options, 3), epoch(options, 3));
  EXPECT_FALSE(std::ranges::is_sorted(epoch(options, 0)));
}

TEST_F(TextSourceTest, OneLongDocumentIsDividedEvenlyAmongTheRows) {
  const Corpus corpus = MakeCorpus(Counting({1003}));
  const auto source = Source(corpus, {.length = 10, .rows_per_batch = 8, .consecutive = true});
  // 101 blocks: five rows of 13, three of 12.
  Batch batch = Fill(*source, Split::kTrain, 0, 0, 8);
  for (int32_t r = 0; r < 8; ++r) EXPECT_EQ(RowOf(batch, r).inputs[0], 10 * (r * 12 + std::min(r, 5)));
  EXPECT_EQ(batch.fresh, std::vector<uint8_t>(8, 1));
  batch = Fill(*source, Split::kTrain, 5, 0, 8);
  EXPECT_EQ(batch.fresh, std::vector<uint8_t>(8, 0));
  EXPECT_EQ(RowOf(batch, 1).inputs[0], 180);
}

// Rows in any order, from any cut of the batch, from another object, with several threads.
TEST_F(TextSourceTest, RowsDependOnNothingButSeedSplitStepAndRow) {
  const Corpus corpus = MakeCorpus(Counting({40, 7, 93, 20}), Counting({30, 12}));
  for (const bool consecutive : {false, true}) {
    const TextSourceOptions options = {
        .seed = 9, .length = 6, .rows_per_batch = 7, .consecutive = consecutive, .documents = Documents::kSeparate};
    const auto source = Source(corpus, options), again = Source(corpus, options);
    std::map<std::pair<int64_t, int64_t>, Row> train, valid;
    for (int64_t step = 0; step < 20; ++step) {
      for (const Split split : {Split::kTrain, Split::kValid}) {
        const Batch batch = Fill(*source, split, step, 0, 7);
        for (int64_t r = 0; r < 7; ++r) (split == Split::kTrain ? train : valid)[{step, r}] = RowOf(batch, r);
      }
    }
    const auto check = [&](uint64_t seed) {
      Rng rng(seed);
      for (int i = 0; i < 300; ++i) {
        const auto step = static_cast<int64_t>(rng.Below(20)), first = static_cast<int64_t>(rng.Below(7));
        const auto rows = static_cast<int64_t>(rng.Below(static_cast<uint64_t>(7 - first) + 1));
        const Split split = rng.Below(2) == 0 ? Split::kTrain : Split::kValid;
        const Batch batch = Fill(*again, split, step, first, rows);
        ASSERT_EQ(batch.rows, rows);
        for (int64_t r = 0; r < rows; ++r) {
          EXPECT_EQ(RowOf(batch, r), (split == Split::kTrain ? train : valid)[std::pair(step, first + r)]);
        }
      }
    };
    check(1);
    std::vector<std::thread> threads;
    for (const uint64_t seed : {2, 3, 4}) threads.emplace_back(check, seed);
    for (std::thread& thread : threads) thread.join();
  }
}

TEST_F(TextSourceTest, ValidationVisitsEveryBlockOnceWhateverTheSeed) {
  const Corpus corpus = MakeCorpus(Counting({50}), Counting({30, 1, 12, 2, 9}));
  for (const int64_t rows : {1, 3, 4}) {
    TextSourceOptions options = {
        .seed = 1, .length = 4, .rows_per_batch = rows, .consecutive = false, .documents = Documents::kSeparate};
    const auto source = Source(corpus, options);
    options.seed = 2;
    options.consecutive = true;
    const auto other = Source(corpus, options);
    // 8 + 3 + 1 + 2 blocks.
    std::map<int32_t, int> targets;
    std::vector<Row> walk;
    for (int64_t k = 0; k < 14; ++k) {
      const Batch batch = Fill(*source, Split::kValid, k / rows, k % rows, 1);
      walk.push_back(RowOf(batch, 0));
      EXPECT_EQ(walk.back(), RowOf(Fill(*other, Split::kValid, k / rows, k % rows, 1), 0));
      EXPECT_TRUE(walk.back().fresh);
      EXPECT_GE(walk.back().targets[0], 0);
      for (const int32_t target : walk.back().targets) {
        if (target >= 0) ++targets[target];
      }
    }
    // Every token but the first of each document, and the document of one token.
    EXPECT_EQ(targets.size(), 29u + 11 + 1 + 8);
    for (const auto& [target, count] : targets) EXPECT_EQ(count, 1) << target;
    for (int64_t k = 14; k < 28; ++k) {
      EXPECT_EQ(RowOf(Fill(*source, Split::kValid, k / rows, k % rows, 1), 0), walk[static_cast<size_t>(k - 14)]);
    }
  }
}

TEST_F(TextSourceTest, TooLittleTextIsAnErrorWithTheNumbers) {
  const auto error = [&](const std::vector<int64_t>& train, const std::vector<int64_t>& valid,
                         const TextSourceOptions& options) {
    return ErrorOf(MakeCorpus(Counting(train), Counting(valid)), options);
  };
  EXPECT_EQ(error({8}, {}, {.length = 8}),
            "the training text has 8 tokens; a row of length 8 needs 9. Give more text or a shorter length");
  EXPECT_EQ(error({9}, {}, {.length = 8}), "ok");
  EXPECT_EQ(
      error({5, 8}, {}, {.length = 8, .documents = Documents::kSeparate}),
      "the training text has 13 tokens, but no document long enough; a row of length 8 needs 9. Give more text or "
      "a shorter length");
  EXPECT_EQ(error({5, 8}, {}, {.length = 8}), "ok");
  EXPECT_EQ(error({20}, {}, {.length = 8, .rows_per_batch = 4, .consecutive = true}),
            "the training text has 20 tokens, which make 3 block(s) of 8; 4 rows in consecutive order need a block "
            "each. Give more text, a shorter length or fewer rows");
  EXPECT_EQ(error({20}, {}, {.length = 8, .rows_per_batch = 3, .consecutive = true}), "ok");
  EXPECT_NE(error({1, 1}, {}, {.length = 8, .consecutive = true, .documents = Documents::kSeparate}), "ok");
  EXPECT_NE(error({}, {}, {.length = 8}), "ok");
  EXPECT_EQ(error({20}, {1}, {.length = 8}),
            "the validation text has 1 token(s), but no document of the 2 it needs. Give more of it, or none");
  EXPECT_EQ(error({20}, {2}, {.length = 8}), "ok");
  EXPECT_NE(error({20}, {}, {.length = 0}), "ok");
  EXPECT_NE(error({20}, {}, {.length = 8, .rows_per_batch = 0}), "ok");
}

TEST_F(TextSourceTest, RefusesRequestsOutOfRange) {
  const auto source = Source(MakeCorpus(Counting({100})), {.length = 8, .rows_per_batch = 4});
  EXPECT_EQ(source->vocab_size(), kVocab);
  EXPECT_EQ(source->length(), 8);
  Batch batch;
  EXPECT_FALSE(source->Fill(Split::kTrain, 0, 0, 5, &batch).ok());
  EXPECT_FALSE(source->Fill(Split::kTrain, 0, 4, 1, &batch).ok());
  EXPECT_FALSE(source->Fill(Split::kTrain, 0, -1, 1, &batch).ok());
  EXPECT_FALSE(source->Fill(Split::kTrain, -1, 0, 1, &batch).ok());
  EXPECT_FALSE(source->Fill(Split::kTrain, 0, INT64_MAX, INT64_MAX, &batch).ok());
  EXPECT_EQ(source->Fill(Split::kValid, 0, 0, 1, &batch).message(),
            "no validation text; set data.text.valid_path or data.text.valid_fraction");
}

}  // namespace
}  // namespace tensorcache::data
