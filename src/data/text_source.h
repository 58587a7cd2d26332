// Rows of text for training. In all orders a row's targets are the tokens that follow its inputs in the same document.
//
// Training, random order: a row of `length` inputs starts anywhere that length + 1 tokens of one document follow; every
// such place is equally likely. Every row is fresh.
//
// Training, consecutive order: for models that carry their state from step to step. Each epoch takes the documents in an
// order of its own. Each is cut into blocks of `length` tokens; the last may be shorter (inputs 0 and targets -1 fill it
// up), and the last token of a document has no target. The blocks of an epoch, document after document, are dealt out
// in equal runs to the rows of a batch, so that each row reads on, step by step. A row is fresh where its document
// starts and where the epoch starts, which may be in the middle of a document. Every token is an input once an epoch,
// but for the last of a document if it would be alone in its block. Where the runs differ by a block, the shorter rows
// end the epoch with an empty block: no targets.
//
// Validation: the same blocks with the documents in order, each row fresh. Row r of step s is number
// s * rows_per_batch + r of a fixed walk that visits each block once before it repeats, and whose every stretch is
// spread evenly over the text.
#pragma once

#include <cstdint>
#include <memory>

#include "data/batch.h"
#include "data/corpus.h"
#include "tensorcache/status.h"

namespace tensorcache::data {

struct TextSourceOptions {
  uint64_t seed = 0;
  int64_t length = 0;          // tokens of a row
  int64_t rows_per_batch = 1;  // of the global batch
  bool consecutive = false;
  Documents documents = Documents::kConcatenate;
};

// Documents of less than two tokens are left out. kInvalidArgument if there is too little text to make a row; an empty
// valid range is not an error until it is asked for.
Result<std::unique_ptr<BatchSource>> MakeTextSource(const Corpus& corpus, const TextSourceOptions& options);

}  // namespace tensorcache::data
