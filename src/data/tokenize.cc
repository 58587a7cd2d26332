#include "data/tokenize.h"

#include <fmt/format.h>

#include <functional>
#include <list>
#include <span>
#include <string_view>
#include <utility>

#include "core/file.h"
#include "core/text.h"
#include "core/thread_pool.h"
#include "data/token_file.h"
#include "tokenizer/byte_level_bpe.h"

namespace tensorcache::data {
namespace {

constexpr size_t kPieceBytes = size_t{1} << 20;
// Encoded together, then written: several pieces for each thread, and a bound for what is in memory.
constexpr size_t kBatchBytes = size_t{8} << 20;
constexpr size_t kBatchPieces = 4096;  // of small files; a process has a limited number of mappings

// Part of a file, in a mapping that lives as long as the batch.
struct Piece {
  const TextFile* file = nullptr;
  std::string_view text;
  size_t offset = 0;  // in the file
  bool begins_file = false;
  bool ends_file = false;
  bool ends_last_file = false;

  std::vector<int32_t> tokens;
  Status status;
};

bool IsVisibleAscii(char c) { return c > ' ' && c < 0x7F; }

// The end of the piece that starts at `begin`: about kPieceBytes on, at a safe cut.
size_t PieceEnd(std::string_view text, size_t begin, SafeCuts cuts) {
  if (cuts == SafeCuts::kNowhere || text.size() - begin <= kPieceBytes) return text.size();
  size_t end = begin + kPieceBytes;
  if (cuts == SafeCuts::kAnywhere) {
    // A character has at most three continuation bytes; in text that is not UTF-8 any cut will do.
    for (int i = 0; i < 3 && (static_cast<uint8_t>(text[end]) & 0xC0) == 0x80; ++i) --end;
    return end;
  }
  while ((end = text.find('\n', end)) != std::string_view::npos) {
    ++end;
    if (end == text.size()) break;
    if (IsVisibleAscii(text[end - 2]) && IsVisibleAscii(text[end])) return end;
  }
  return text.size();
}

class Tokenization {
 public:
  Tokenization(const Tokenizer& tokenizer, const TokenizeOptions& options, TokenFileWriter* writer,
               std::function<void(int64_t bytes)> on_progress)
      : tokenizer_(tokenizer), options_(options), writer_(*writer), on_progress_(std::move(on_progress)) {}

  Status Add(const TextFile& file, bool is_last) {
    TC_ASSIGN_OR_RETURN(MappedFile mapping, MappedFile::Open(file.path));
    const std::string_view text(reinterpret_cast<const char*>(mapping.bytes().data()), mapping.bytes().size());
    mappings_.push_back(std::move(mapping));
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = PieceEnd(text, begin, options_.cuts);
      pieces_.push_back({.file = &file,
                         .text = text.substr(begin, end - begin),
                         .offset = begin,
                         .begins_file = begin == 0,
                         .ends_file = end == text.size(),
                         .ends_last_file = end == text.size() && is_last});
      batch_bytes_ += end - begin;
      begin = end;
      if (batch_bytes_ >= kBatchBytes || pieces_.size() >= kBatchPieces) TC_RETURN_IF_ERROR(Flush());
    }
    return OkStatus();
  }

  // Encodes and writes what was added since the last call.
  Status Flush() {
    pool_.ParallelFor(std::ssize(pieces_), 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) Encode(&pieces_[static_cast<size_t>(i)]);
    });
    for (const Piece& piece : pieces_) {
      TC_RETURN_IF_ERROR(piece.status);
      if (piece.begins_file && options_.begin) {
        const int32_t begin_of_text = tokenizer_.begin_of_text();
        TC_RETURN_IF_ERROR(writer_.Append(std::span(&begin_of_text, 1)));
      }
      TC_RETURN_IF_ERROR(writer_.Append(piece.tokens));
      if (piece.ends_file) TC_RETURN_IF_ERROR(EndFile(piece.ends_last_file));
    }
    bytes_done_ += static_cast<int64_t>(batch_bytes_);
    batch_bytes_ = 0;
    on_progress_(bytes_done_);
    pieces_.clear();
    // The last file may have more pieces to come.
    while (mappings_.size() > 1) mappings_.pop_front();
    return OkStatus();
  }

 private:
  void Encode(Piece* piece) const {
    piece->status = CheckUtf8(piece->text, piece->file->path, piece->offset);
    if (!piece->status.ok()) return;
    const Status status = tokenizer_.Encode(piece->text, &piece->tokens);
    if (!status.ok()) {
      piece->status = {status.code(), fmt::format("{}: {}", Quoted(piece->file->path), status.message())};
    }
  }

  Status EndFile(bool is_last) {
    const int32_t end_of_text = tokenizer_.end_of_text();
    if (end_of_text >= 0 && (options_.documents == Documents::kSeparate || !is_last)) {
      TC_RETURN_IF_ERROR(writer_.Append(std::span(&end_of_text, 1)));
    }
    writer_.EndDocument();
    return OkStatus();
  }

  const Tokenizer& tokenizer_;
  const TokenizeOptions& options_;
  TokenFileWriter& writer_;
  std::function<void(int64_t)> on_progress_;
  ThreadPool pool_;
  std::list<MappedFile> mappings_;
  std::vector<Piece> pieces_;
  size_t batch_bytes_ = 0;
  int64_t bytes_done_ = 0;
};

// What was tokenised has to be what the token file is named after.
Status CheckUnchanged(const TextFile& file) {
  const auto now = DescribeTextFile(file.path);
  if (now.ok() && *now == file) return OkStatus();
  return IoError(fmt::format("{} changed while it was read; try again when nothing writes to it", Quoted(file.path)));
}

}  // namespace

SafeCuts FindSafeCuts(const std::string& name, const Tokenizer& tokenizer) {
  if (name == "bytes" || name == "characters") return SafeCuts::kAnywhere;
  const auto* bpe = dynamic_cast<const tokenizer::ByteLevelBpe*>(&tokenizer);
  if (bpe == nullptr) return SafeCuts::kNowhere;
  // No merge goes beyond a word, and in all three patterns a word ends behind such a line feed, whether or not text
  // follows: words that have letters, digits or signs behind a line feed do not exist, and a run of spaces depends on
  // what follows it only if there are two or more. Normalisation does not reach across it either. Only an added token
  // could.
  for (const tokenizer::AddedToken& added : bpe->Parts().added) {
    if (!added.special && added.text.find('\n') != std::string::npos) return SafeCuts::kNowhere;
  }
  return SafeCuts::kLines;
}

Status TokenizeFiles(const std::vector<TextFile>& files, const Tokenizer& tokenizer, const TokenizeOptions& options,
                     const std::string& token_path, const Progress& progress) {
  TC_ASSIGN_OR_RETURN(TokenFileWriter writer,
                      TokenFileWriter::Create(token_path, tokenizer.vocab_size(), tokenizer.fingerprint()));
  int64_t total = 0;
  for (const TextFile& file : files) total += file.bytes;
  const auto report = [&](int64_t bytes) {
    if (progress) progress(bytes, total);
  };
  report(0);
  Tokenization tokenization(tokenizer, options, &writer, report);
  for (size_t i = 0; i < files.size(); ++i) {
    TC_RETURN_IF_ERROR(tokenization.Add(files[i], i + 1 == files.size()));
  }
  TC_RETURN_IF_ERROR(tokenization.Flush());
  for (const TextFile& file : files) TC_RETURN_IF_ERROR(CheckUnchanged(file));
  return writer.Commit();
}

}  // namespace tensorcache::data
