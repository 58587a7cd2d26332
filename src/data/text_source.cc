#include "data/text_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "core/rng.h"
#include "data/row_request.h"
#include "data/text_blocks.h"

namespace tensorcache::data {
namespace {

// Copies tokens of `file` into row r of *batch.
Status FillRow(const TokenFile& file, const TextBlock& block, int64_t r, Batch* batch) {
  const auto at = static_cast<size_t>(r * batch->length);
  TC_RETURN_IF_ERROR(file.Read(block.begin, std::span(batch->inputs).subspan(at, static_cast<size_t>(block.inputs))));
  return file.Read(block.begin + 1, std::span(batch->targets).subspan(at, static_cast<size_t>(block.targets)));
}

// Which block row `row` of step `step` is. Thread-safe.
class RowOrder {
 public:
  virtual ~RowOrder() = default;
  virtual TextBlock Find(int64_t step, int64_t row) const = 0;
};

class RandomOrder : public RowOrder {
 public:
  RandomOrder(StartList starts, const TextSourceOptions& options)
      : starts_(std::move(starts)), seed_(options.seed), length_(options.length) {}

  TextBlock Find(int64_t step, int64_t row) const override {
    Rng rng(seed_, DataStream(StreamPurpose::kRow, Split::kTrain, step, row));
    const auto start = static_cast<int64_t>(rng.Below(static_cast<uint64_t>(starts_.size())));
    return {.begin = starts_.at(start), .inputs = length_, .targets = length_, .fresh = true};
  }

 private:
  StartList starts_;
  uint64_t seed_;
  int64_t length_;
};

class ConsecutiveOrder : public RowOrder {
 public:
  ConsecutiveOrder(std::vector<TextDocument> documents, int64_t blocks, const TextSourceOptions& options)
      : documents_(std::move(documents)), blocks_(blocks), options_(options) {}

  // A block of no tokens where the row has none left in this epoch.
  TextBlock Find(int64_t step, int64_t row) const override {
    const int64_t rows = options_.rows_per_batch;
    const int64_t steps = (blocks_ + rows - 1) / rows;  // of an epoch
    const int64_t at = step % steps;
    // The rows' runs: the first blocks_ % rows of them have one block more.
    const int64_t begin = row * (blocks_ / rows) + std::min(row, blocks_ % rows);
    const int64_t size = blocks_ / rows + (row < blocks_ % rows ? 1 : 0);
    if (at >= size) return {.fresh = true};
    TextBlock block = Epoch(step / steps)->at(begin + at);
    block.fresh |= at == 0;
    return block;
  }

 private:
  // The blocks of an epoch in its order of documents. The last one asked for is kept: it costs O(documents).
  std::shared_ptr<const BlockList> Epoch(int64_t epoch) const {
    const std::lock_guard lock(mutex_);
    if (cached_epoch_ != epoch) {
      std::vector<TextDocument> order = documents_;
      Rng rng(options_.seed, DataStream(StreamPurpose::kOrder, Split::kTrain, epoch, 0));
      for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[rng.Below(i)]);
      cached_ = std::make_shared<const BlockList>(std::move(order), options_.length);
      cached_epoch_ = epoch;
    }
    return cached_;
  }

  std::vector<TextDocument> documents_;
  int64_t blocks_;
  TextSourceOptions options_;
  mutable std::mutex mutex_;
  mutable int64_t cached_epoch_ = -1;
  mutable std::shared_ptr<const BlockList> cached_;
};

class SpreadOrder : public RowOrder {
 public:
  SpreadOrder(BlockList blocks, int64_t rows_per_batch)
      : blocks_(std::move(blocks)), stride_(SpreadStride(blocks_.size())), rows_(rows_per_batch) {}

  TextBlock Find(int64_t step, int64_t row) const override {
    TextBlock block = blocks_.at(SpreadIndex(step * rows_ + row, stride_, blocks_.size()));
    block.fresh = true;
    return block;
  }

 private:
  BlockList blocks_;
  int64_t stride_;
  int64_t rows_;
};

Result<std::unique_ptr<RowOrder>> MakeTrainOrder(const TokenRange& train, const TextSourceOptions& options) {
  std::vector<TextDocument> documents = ListDocuments(train, options.documents);
  const int64_t tokens = train.size();
  if (options.consecutive) {
    const int64_t blocks = BlockList(documents, options.length).size();
    if (blocks < options.rows_per_batch) {
      return InvalidArgument(fmt::format(
          "the training text has {} tokens, which make {} block(s) of {}; {} rows in consecutive order need "
          "a block each. Give more text, a shorter length or fewer rows",
          tokens, blocks, options.length, options.rows_per_batch));
    }
    return std::unique_ptr<RowOrder>(std::make_unique<ConsecutiveOrder>(std::move(documents), blocks, options));
  }
  StartList starts(std::move(documents), options.length + 1);
  if (starts.size() == 0) {
    return InvalidArgument(fmt::format(
        "the training text has {} tokens{}; a row of length {} needs {}. Give more text or a shorter length", tokens,
        options.documents == Documents::kSeparate ? ", but no document long enough" : "", options.length,
        options.length + 1));
  }
  return std::unique_ptr<RowOrder>(std::make_unique<RandomOrder>(std::move(starts), options));
}

// Null if there is no validation text.
Result<std::unique_ptr<RowOrder>> MakeValidOrder(const TokenRange& valid, const TextSourceOptions& options) {
  if (valid.begin == valid.end) return std::unique_ptr<RowOrder>();
  BlockList blocks(ListDocuments(valid, options.documents), options.length);
  if (blocks.size() == 0) {
    return InvalidArgument(
        fmt::format("the validation text has {} token(s), but no document of the 2 it needs. Give more of it, or none",
                    valid.size()));
  }
  return std::unique_ptr<RowOrder>(std::make_unique<SpreadOrder>(std::move(blocks), options.rows_per_batch));
}

class TextSource : public BatchSource {
 public:
  TextSource(Corpus corpus, const TextSourceOptions& options, std::unique_ptr<RowOrder> train,
             std::unique_ptr<RowOrder> valid)
      : corpus_(std::move(corpus)), options_(options), train_(std::move(train)), valid_(std::move(valid)) {}

  int64_t vocab_size() const override { return corpus_.train.file->vocab_size(); }
  int64_t length() const override { return options_.length; }

  Status Fill(Split split, int64_t step, int64_t first_row, int64_t rows, Batch* batch) const override {
    const RowOrder* order = split == Split::kTrain ? train_.get() : valid_.get();
    if (order == nullptr) {
      return InvalidArgument("no validation text; set data.text.valid_path or data.text.valid_fraction");
    }
    TC_RETURN_IF_ERROR(PrepareBatch(step, first_row, rows, options_.length, batch));
    if (first_row + rows > options_.rows_per_batch) {
      return InvalidArgument(
          fmt::format("no batch of {} rows from row {}: it has {}", rows, first_row, options_.rows_per_batch));
    }
    const TokenFile& file = *(split == Split::kTrain ? corpus_.train : corpus_.valid).file;
    for (int64_t r = 0; r < rows; ++r) {
      const TextBlock block = order->Find(step, first_row + r);
      batch->fresh[static_cast<size_t>(r)] = block.fresh ? 1 : 0;
      TC_RETURN_IF_ERROR(FillRow(file, block, r, batch));
    }
    return OkStatus();
  }

 private:
  Corpus corpus_;
  TextSourceOptions options_;
  std::unique_ptr<RowOrder> train_;
  std::unique_ptr<RowOrder> valid_;
};

}  // namespace

Result<std::unique_ptr<BatchSource>> MakeTextSource(const Corpus& corpus, const TextSourceOptions& options) {
  constexpr int64_t kMaxLength = int64_t{1} << 24;
  if (options.length < 1 || options.length > kMaxLength) {
    return InvalidArgument(fmt::format("rows of length {}; it must be 1 to {}", options.length, kMaxLength));
  }
  if (options.rows_per_batch < 1 || options.rows_per_batch > kMaxRows) {
    return InvalidArgument(fmt::format("batches of {} rows; it must be 1 to {}", options.rows_per_batch, kMaxRows));
  }
  TC_ASSIGN_OR_RETURN(std::unique_ptr<RowOrder> train, MakeTrainOrder(corpus.train, options));
  TC_ASSIGN_OR_RETURN(std::unique_ptr<RowOrder> valid, MakeValidOrder(corpus.valid, options));
  return std::unique_ptr<BatchSource>(
      std::make_unique<TextSource>(corpus, options, std::move(train), std::move(valid)));
}

}  // namespace tensorcache::data
