// The tokens of a corpus in one file, mapped when read. All numbers are little-endian:
//
//   16 bytes    "tctokens", version (uint32), bytes per token (uint32): 2 if the vocabulary has at most 65536, else 4
//   tokens      of one document after the other, then zeros up to a multiple of 8 bytes
//   sums        uint64 for each 64 KiB of these, the last may be shorter: their CRC-64
//   documents   uint64 x (documents + 1): at which token each starts, and the number of tokens
//   48 bytes    vocabulary, tokenizer fingerprint, tokens, documents, checksum (uint64 each), "tctokend"
//
// The counts stand at the end so that the file can be written in one pass. The checksum is the CRC-64 of everything before
// it but the tokens, which the sums are for: a CRC takes longer than reading does, so those of a large file are compared
// block by block, as the tokens are first read.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/checksum.h"
#include "core/file.h"
#include "tensorcache/status.h"

namespace tensorcache::data {

inline constexpr uint32_t kTokenFileVersion = 2;
// Files with fewer bytes of tokens are checked as a whole when they are opened.
inline constexpr int64_t kCheckedOnOpen = int64_t{64} << 20;

// Read-only and thread-safe.
class TokenFile {
 public:
  // kCorrupt for a file that is damaged, cut short, or not a token file; kUnsupported for another version.
  static Result<TokenFile> Open(const std::string& path);
  // The same of bytes that outlive the TokenFile. `source` names them in messages.
  static Result<TokenFile> FromMemory(std::span<const std::byte> bytes, std::string source,
                                      int64_t checked_on_open = kCheckedOnOpen);

  int64_t vocab_size() const { return vocab_size_; }
  uint64_t tokenizer_fingerprint() const { return fingerprint_; }
  int64_t tokens() const { return tokens_; }
  int64_t documents() const { return documents_; }
  // First and one past the last token of document i; a document may be empty.
  std::pair<int64_t, int64_t> document(int64_t i) const { return {Offset(i), Offset(i + 1)}; }

  // The tokens from `first` on, as many as `out` holds; all must be in the file. kCorrupt if they were damaged, or one is
  // not in the vocabulary.
  Status Read(int64_t first, std::span<int32_t> out) const;

 private:
  TokenFile() = default;
  Status Parse(std::span<const std::byte> bytes);
  int64_t Offset(int64_t i) const;
  // Compares the sums of the blocks in which the bytes [begin, end) of the tokens lie, unless that was done before.
  Status CheckBlocks(int64_t begin, int64_t end) const;

  std::optional<MappedFile> mapping_;
  std::string source_;
  int64_t vocab_size_ = 0;
  uint64_t fingerprint_ = 0;
  int64_t token_bytes_ = 0;
  int64_t tokens_ = 0;
  int64_t documents_ = 0;
  std::span<const std::byte> token_data_;  // with the zeros
  const std::byte* sums_ = nullptr;
  const std::byte* offsets_ = nullptr;
  std::unique_ptr<std::atomic<bool>[]> is_checked_;  // by block
};

// Writes a token file front to back; it appears at its path on Commit. Holds 8 bytes per document and
// per block, not the tokens.
class TokenFileWriter {
 public:
  static Result<TokenFileWriter> Create(const std::string& path, int64_t vocab_size, uint64_t tokenizer_fingerprint);

  // kInvalidArgument if a token is not in the vocabulary.
  Status Append(std::span<const int32_t> tokens);
  // What was appended since the last call is a document.
  void EndDocument() { starts_.push_back(static_cast<uint64_t>(tokens_)); }
  // Ends a document that EndDocument did not end, if it has tokens. At most once, last.
  Status Commit();

 private:
  TokenFileWriter(AtomicFile file, int64_t vocab_size, uint64_t fingerprint)
      : file_(std::move(file)), vocab_size_(vocab_size), fingerprint_(fingerprint) {}

  template <class Token>
  Status AppendAs(std::span<const int32_t> tokens);
  // Writes and sums.
  Status AppendBytes(std::span<const std::byte> bytes);
  void EndBlock();

  AtomicFile file_;
  int64_t vocab_size_;
  uint64_t fingerprint_;
  int64_t tokens_ = 0;
  std::vector<uint64_t> starts_ = {0};
  std::vector<uint64_t> sums_;
  Crc64 block_sum_;
  int64_t block_bytes_ = 0;
};

}  // namespace tensorcache::data
