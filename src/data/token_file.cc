#include "data/token_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <string_view>

#include "core/check.h"
#include "core/text.h"
#include "tokenizer/fingerprint.h"

namespace tensorcache::data {
namespace {

static_assert(std::endian::native == std::endian::little, "token files are written and mapped as they are in memory");

constexpr std::string_view kMagic = "tctokens";
constexpr std::string_view kEndMagic = "tctokend";
constexpr int64_t kHeaderBytes = 16;
constexpr int64_t kFooterBytes = 48;
constexpr uint64_t kMaxVocab = uint64_t{1} << 31;
constexpr uint64_t kSmallVocab = 65536;

template <class T>
T Load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(value));
  return value;
}

bool HasText(const std::byte* at, std::string_view text) { return std::memcmp(at, text.data(), text.size()) == 0; }

int64_t TokenBytesFor(uint64_t vocab_size) { return vocab_size <= kSmallVocab ? 2 : 4; }

int64_t RoundUpTo8(int64_t bytes) { return (bytes + 7) / 8 * 8; }

// The first bytes of a file.
std::array<std::byte, kHeaderBytes> Header(uint32_t token_bytes) {
  std::array<std::byte, kHeaderBytes> header;
  std::memcpy(header.data(), kMagic.data(), 8);
  std::memcpy(header.data() + 8, &kTokenFileVersion, 4);
  std::memcpy(header.data() + 12, &token_bytes, 4);
  return header;
}

uint64_t Checksum(std::span<const std::byte> header, std::span<const std::byte> offsets,
                  std::span<const std::byte> counts) {
  tokenizer::Fingerprint sum;
  for (const auto& part : {header, offsets, counts}) {
    sum.Add(std::string_view(reinterpret_cast<const char*>(part.data()), part.size()));
  }
  return sum.value();
}

// Reads out.size() tokens. Returns the largest, to be compared with the vocabulary.
template <class Token>
uint32_t Widen(const std::byte* from, std::span<int32_t> out) {
  uint32_t largest = 0;
  for (size_t i = 0; i < out.size(); ++i) {
    const uint32_t token = Load<Token>(from + i * sizeof(Token));
    largest = std::max(largest, token);
    out[i] = static_cast<int32_t>(token);
  }
  return largest;
}

}  // namespace

Result<TokenFile> TokenFile::Open(const std::string& path) {
  TC_ASSIGN_OR_RETURN(MappedFile mapping, MappedFile::Open(path));
  TC_ASSIGN_OR_RETURN(TokenFile file, FromMemory(mapping.bytes(), path));
  file.mapping_ = std::move(mapping);
  return file;
}

Result<TokenFile> TokenFile::FromMemory(std::span<const std::byte> bytes, std::string source) {
  TokenFile file;
  const Status status = file.Parse(bytes);
  if (!status.ok()) return Status(status.code(), fmt::format("{}: {}", Quoted(source), status.message()));
  file.source_ = std::move(source);
  return file;
}

Status TokenFile::Parse(std::span<const std::byte> bytes) {
  const int64_t size = std::ssize(bytes);
  if (size < kHeaderBytes || !HasText(bytes.data(), kMagic)) return Corrupt("not a token file");
  const auto version = Load<uint32_t>(bytes.data() + 8);
  if (version != kTokenFileVersion) {
    return Unsupported(fmt::format("a token file of version {}, this program reads version {}; tokenise the text again",
                                   version, kTokenFileVersion));
  }
  token_bytes_ = Load<uint32_t>(bytes.data() + 12);
  if (size < kHeaderBytes + 8 + kFooterBytes || !HasText(bytes.last(8).data(), kEndMagic)) {
    return Corrupt("a token file that was cut short; delete it and tokenise the text again");
  }
  const std::byte* footer = bytes.last(kFooterBytes).data();
  const auto vocab_size = Load<uint64_t>(footer), tokens = Load<uint64_t>(footer + 16),
             documents = Load<uint64_t>(footer + 24), checksum = Load<uint64_t>(footer + 32);
  fingerprint_ = Load<uint64_t>(footer + 8);
  if (vocab_size < 1 || vocab_size > kMaxVocab || token_bytes_ != TokenBytesFor(vocab_size)) {
    return Corrupt(
        fmt::format("a damaged token file: {} bytes per token for a vocabulary of {}", token_bytes_, vocab_size));
  }
  // Bounded by the file's size before they are multiplied.
  if (tokens > static_cast<uint64_t>(size) || documents > static_cast<uint64_t>(size)) {
    return Corrupt(
        fmt::format("a damaged token file: {} bytes cannot hold {} tokens in {} documents", size, tokens, documents));
  }
  vocab_size_ = static_cast<int64_t>(vocab_size);
  tokens_ = static_cast<int64_t>(tokens);
  documents_ = static_cast<int64_t>(documents);
  const int64_t offsets_at = kHeaderBytes + RoundUpTo8(tokens_ * token_bytes_);
  const int64_t offsets_bytes = 8 * (documents_ + 1);
  if (offsets_at + offsets_bytes + kFooterBytes != size) {
    return Corrupt(
        fmt::format("a damaged token file: {} bytes do not hold {} tokens in {} documents", size, tokens, documents));
  }
  token_data_ = bytes.data() + kHeaderBytes;
  offsets_ = bytes.data() + offsets_at;
  if (Checksum(bytes.first(kHeaderBytes), {offsets_, static_cast<size_t>(offsets_bytes)}, {footer, 32}) != checksum) {
    return Corrupt("a damaged token file: wrong checksum; delete it and tokenise the text again");
  }
  for (int64_t i = 0; i < documents_; ++i) {
    if (Load<uint64_t>(offsets_ + 8 * i) > Load<uint64_t>(offsets_ + 8 * (i + 1))) {
      return Corrupt(fmt::format("a damaged token file: document {} ends before it starts", i));
    }
  }
  if (Offset(0) != 0 || Offset(documents_) != tokens_) {
    return Corrupt("a damaged token file: the documents do not cover the tokens");
  }
  return OkStatus();
}

int64_t TokenFile::Offset(int64_t i) const {
  TC_CHECK(i >= 0 && i <= documents_);
  return Load<int64_t>(offsets_ + 8 * i);
}

Status TokenFile::Read(int64_t first, std::span<int32_t> out) const {
  TC_CHECK(first >= 0 && first <= tokens_ && std::ssize(out) <= tokens_ - first);
  const std::byte* from = token_data_ + first * token_bytes_;
  const uint32_t largest = token_bytes_ == 2 ? Widen<uint16_t>(from, out) : Widen<uint32_t>(from, out);
  if (!out.empty() && largest >= vocab_size_) {
    return Corrupt(
        fmt::format("{}: token {} near position {} is not in its vocabulary of {}; delete the file and "
                    "tokenise the text again",
                    Quoted(source_), largest, first, vocab_size_));
  }
  return OkStatus();
}

Result<TokenFileWriter> TokenFileWriter::Create(const std::string& path, int64_t vocab_size,
                                                uint64_t tokenizer_fingerprint) {
  TC_CHECK(vocab_size >= 1 && vocab_size <= static_cast<int64_t>(kMaxVocab));
  TC_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::Create(path));
  TC_RETURN_IF_ERROR(file.Append(Header(static_cast<uint32_t>(TokenBytesFor(static_cast<uint64_t>(vocab_size))))));
  return TokenFileWriter(std::move(file), vocab_size, tokenizer_fingerprint);
}

template <class Token>
Status TokenFileWriter::AppendAs(std::span<const int32_t> tokens) {
  std::array<Token, 8192> narrow;
  while (!tokens.empty()) {
    const size_t count = std::min(tokens.size(), narrow.size());
    for (size_t i = 0; i < count; ++i) {
      if (tokens[i] < 0 || tokens[i] >= vocab_size_) {
        return InvalidArgument(
            fmt::format("the tokenizer gave token {}, but its vocabulary has {}", tokens[i], vocab_size_));
      }
      narrow[i] = static_cast<Token>(tokens[i]);
    }
    TC_RETURN_IF_ERROR(file_.Append(std::as_bytes(std::span(narrow).first(count))));
    tokens_ += static_cast<int64_t>(count);
    tokens = tokens.subspan(count);
  }
  return OkStatus();
}

Status TokenFileWriter::Append(std::span<const int32_t> tokens) {
  return TokenBytesFor(static_cast<uint64_t>(vocab_size_)) == 2 ? AppendAs<uint16_t>(tokens)
                                                                : AppendAs<uint32_t>(tokens);
}

Status TokenFileWriter::Commit() {
  if (starts_.back() != static_cast<uint64_t>(tokens_)) EndDocument();
  const int64_t token_bytes = TokenBytesFor(static_cast<uint64_t>(vocab_size_));
  const std::array<std::byte, 8> zeros{};
  const int64_t padding = RoundUpTo8(tokens_ * token_bytes) - tokens_ * token_bytes;
  TC_RETURN_IF_ERROR(file_.Append(std::span(zeros).first(static_cast<size_t>(padding))));
  const auto offsets = std::as_bytes(std::span(starts_));
  TC_RETURN_IF_ERROR(file_.Append(offsets));
  const std::array<uint64_t, 4> counts = {static_cast<uint64_t>(vocab_size_), fingerprint_,
                                          static_cast<uint64_t>(tokens_), starts_.size() - 1};
  const auto count_bytes = std::as_bytes(std::span(counts));
  TC_RETURN_IF_ERROR(file_.Append(count_bytes));
  const uint64_t checksum = Checksum(Header(static_cast<uint32_t>(token_bytes)), offsets, count_bytes);
  TC_RETURN_IF_ERROR(file_.Append(std::as_bytes(std::span(&checksum, 1))));
  TC_RETURN_IF_ERROR(file_.Append(kEndMagic));
  return file_.Commit();
}

}  // namespace tensorcache::data
