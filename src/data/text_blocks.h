// Where the rows of a text lie: documents as ranges of tokens, and the blocks they are cut into. No tokens are read.
#pragma once

#include <cstdint>
#include <vector>

#include "data/corpus.h"

namespace tensorcache::data {

// Tokens [begin, end) of a token file that belong together.
struct TextDocument {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t tokens() const { return end - begin; }
  bool operator==(const TextDocument&) const = default;
};

// The documents inside `range`, in order, of at least two tokens each: one alone if they are concatenated.
std::vector<TextDocument> ListDocuments(const TokenRange& range, Documents documents);

// Inputs [begin, begin + inputs) and targets [begin + 1, begin + 1 + targets).
struct TextBlock {
  int64_t begin = 0;
  int64_t inputs = 0;
  int64_t targets = 0;  // at least 1; one less than inputs where the document ends
  bool fresh = false;   // starts its document
};

// The blocks of `length` inputs of some documents, one document after the other in the order given; a document's last
// block may be shorter. A last token that would be alone in its block is only a target: such a block would teach
// nothing. O(documents) memory.
class BlockList {
 public:
  BlockList(std::vector<TextDocument> documents, int64_t length);

  int64_t size() const { return first_block_.back(); }
  TextBlock at(int64_t block) const;  // O(log documents)

 private:
  std::vector<TextDocument> documents_;
  std::vector<int64_t> first_block_;  // of each document, and the number of blocks
  int64_t length_;
};

// The places where a run of `tokens` tokens fits inside a document.
class StartList {
 public:
  StartList(std::vector<TextDocument> documents, int64_t tokens);

  int64_t size() const { return first_start_.back(); }
  int64_t at(int64_t start) const;  // the first token; O(log documents)

 private:
  std::vector<TextDocument> documents_;
  std::vector<int64_t> first_start_;
};

// A walk through [0, n) that visits each number once before it repeats and spreads any stretch of it evenly: the
// multiples of a stride near n over the golden ratio that has no factor in common with n.
int64_t SpreadStride(int64_t n);
int64_t SpreadIndex(int64_t k, int64_t stride, int64_t n);  // stride * k mod n

}  // namespace tensorcache::data
