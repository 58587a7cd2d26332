// Files to one token file, with several threads.
#pragma once

#include <string>
#include <vector>

#include "data/corpus.h"
#include "tensorcache/status.h"
#include "tensorcache/tokenizer.h"

namespace tensorcache::data {

// Where a text may be cut so that the tokens of the whole are those of its parts.
enum class SafeCuts {
  kNowhere,  // or nobody knows: a file is encoded in one piece, by one thread, and its tokens are in memory at once
  kLines,    // behind a line feed that stands between two visible ASCII characters
  kAnywhere  // between two characters
};

// What is certain about `tokenizer`, the one that TextDataConfig calls `name`.
SafeCuts FindSafeCuts(const std::string& name, const Tokenizer& tokenizer);

struct TokenizeOptions {
  Documents documents = Documents::kConcatenate;
  SafeCuts cuts = SafeCuts::kNowhere;
  bool begin = false;  // the tokenizer has a begin-of-text token, and each file starts with it
};

// Writes `token_path`: the same bytes with any number of threads. The first file in order that is not UTF-8, or that the
// tokenizer refuses, or that changes meanwhile, is an error that names it.
Status TokenizeFiles(const std::vector<TextFile>& files, const Tokenizer& tokenizer, const TokenizeOptions& options,
                     const std::string& token_path, const Progress& progress);

}  // namespace tensorcache::data
