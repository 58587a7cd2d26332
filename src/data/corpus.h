// Text files to tokens. A text is tokenised once, into a token file in the cache folder whose name is a hash of what was
// tokenised and how; later runs map that file. A text that has changed since, by size or time, has another name.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/token_file.h"
#include "tensorcache/status.h"
#include "tensorcache/tokenizer.h"

namespace tensorcache::data {

// What becomes of the borders between the files of a folder.
enum class Documents {
  kConcatenate,  // one long text, with the tokenizer's end-of-text token (if it has one) between the files
  kSeparate,     // a row never spans two files; the end-of-text token stands after each
};
constexpr auto EnumNames(Documents) {
  return std::to_array<std::pair<Documents, std::string_view>>(
      {{Documents::kConcatenate, "concatenate"}, {Documents::kSeparate, "separate"}});
}

struct TextDataConfig {
  std::string path;
  std::string valid_path;
  double valid_fraction = 0.1;
  std::string tokenizer = "bytes";
  Documents documents = Documents::kConcatenate;
  bool begin = false;
  std::string cache_dir;

  template <class V>
  void Fields(V& v) {
    v("path", path, "a UTF-8 text file, or a folder of such files (with its subfolders, sorted by path)");
    v("valid_path", valid_path, "the text for validation; empty: the last part of path");
    v("valid_fraction", valid_fraction, "how much of path is for validation if valid_path is empty; 0 for none");
    v("tokenizer", tokenizer, "bytes, characters, or the path of a tokenizer");
    v("documents", documents, "whether a row may go on from one file into the next");
    v("begin", begin, "the tokenizer's begin-of-text token stands before each file, as some models want it");
    v("cache_dir", cache_dir, "where tokenised text is kept; empty: $XDG_CACHE_HOME or ~/.cache, in tensorcache");
  }
};

struct TextFile {
  std::string path;  // absolute
  int64_t bytes = 0;
  int64_t modified = 0;  // nanoseconds

  bool operator==(const TextFile&) const = default;
};

// The file at `path`, or the files in and below that folder in the order of their paths, without hidden and empty ones.
// kInvalidArgument if there is none. Links to files are followed, links to folders are not.
Result<std::vector<TextFile>> ListTextFiles(const std::string& path);

// One file as it is now; `path` stays as it is.
Result<TextFile> DescribeTextFile(const std::string& path);

// kInvalidArgument that names the file unless `text`, its part from `offset` on, is UTF-8.
Status CheckUtf8(std::string_view text, const std::string& path, size_t offset);

// Each character of all the texts of `config` once, in the order of first occurrence: what a character tokenizer has to
// know. Reads everything.
Result<std::string> DistinctCharacters(const TextDataConfig& config);

// The tokens [begin, end) of a token file; begin = end for none.
struct TokenRange {
  std::shared_ptr<const TokenFile> file;
  int64_t begin = 0;
  int64_t end = 0;

  int64_t size() const { return end - begin; }
  // The tokens from number `first` of the range on, as many as `out` holds.
  Status Read(int64_t first, std::span<int32_t> out) const { return file->Read(begin + first, out); }
};

struct Corpus {
  TokenRange train;
  TokenRange valid;
};

// Called now and then by the calling thread while text is tokenised; never if everything was in the cache.
using Progress = std::function<void(int64_t bytes_done, int64_t bytes_total)>;

// Tokenises what is not in the cache yet, with all cores, and maps the result. With valid_path empty, the border between
// train and valid is at the nearest token to the fraction, wherever that falls. Several processes may do this at once:
// each writes under a name of its own, and the last rename wins.
Result<Corpus> OpenCorpus(const TextDataConfig& config, const Tokenizer& tokenizer, const Progress& progress);

}  // namespace tensorcache::data
