#include "data/token_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <initializer_list>
#include <string_view>

#include "core/check.h"
#include "core/text.h"

namespace tensorcache::data {
namespace {

static_assert(std::endian::native == std::endian::little, "token files are written and mapped as they are in memory");

constexpr std::string_view kMagic = "tctokens";
constexpr std::string_view kEndMagic = "tctokend";
constexpr int64_t kHeaderBytes = 16;
constexpr int64_t kFooterBytes = 48;
constexpr int64_t kBlockBytes = int64_t{64} << 10;
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

int64_t BlocksOf(int64_t bytes) { return (bytes + kBlockBytes - 1) / kBlockBytes; }

uint64_t Checksum(std::initializer_list<std::span<const std::byte>> parts) {
  Crc64 sum;
  for (const auto& part : parts) sum.Add(part);
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

Result<TokenFile> TokenFile::FromMemory(std::span<const std::byte> bytes, std::string source, int64_t checked_on_open) {
  TokenFile file;
  const Status status = file.Parse(bytes);
  if (!status.ok()) return Status(status.code(), fmt::format("{}: {}", Quoted(source), status.message()));
  file.source_ = std::move(source);
  const int64_t token_bytes = std::ssize(file.token_data_);
  if (token_bytes < checked_on_open) TC_RETURN_IF_ERROR(file.CheckBlocks(0, token_bytes));
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
  const int64_t data_bytes = RoundUpTo8(tokens_ * token_bytes_), blocks = BlocksOf(data_bytes);
  const int64_t sums_at = kHeaderBytes + data_bytes, offsets_at = sums_at + 8 * blocks;
  const int64_t offsets_bytes = 8 * (documents_ + 1);
  if (offsets_at + offsets_bytes + kFooterBytes != size) {
    return Corrupt(
        fmt::format("a damaged token file: {} bytes do not hold {} tokens in {} documents", size, tokens, documents));
  }
  token_data_ = bytes.subspan(kHeaderBytes, static_cast<size_t>(data_bytes));
  sums_ = bytes.data() + sums_at;
  offsets_ = bytes.data() + offsets_at;
  is_checked_ = std::make_unique<std::atomic<bool>[]>(static_cast<size_t>(blocks));
  if (Checksum({bytes.first(kHeaderBytes), {sums_, footer + 32}}) != checksum) {
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

Status TokenFile::CheckBlocks(int64_t begin, int64_t end) const {
  for (int64_t block = begin / kBlockBytes; block < BlocksOf(end); ++block) {
    std::atomic<bool>& is_checked = is_checked_[static_cast<size_t>(block)];
    if (is_checked) continue;
    const int64_t at = block * kBlockBytes, size = std::min(kBlockBytes, std::ssize(token_data_) - at);
    if (Checksum({token_data_.subspan(static_cast<size_t>(at), static_cast<size_t>(size))}) !=
        Load<uint64_t>(sums_ + 8 * block)) {
      return Corrupt(
          fmt::format("{}: a damaged token file: wrong checksum of the tokens from {} on; delete it and "
                      "tokenise the text again",
                      Quoted(source_), at / token_bytes_));
    }
    is_checked = true;
  }
  return OkStatus();
}

Status TokenFile::Read(int64_t first, std::span<int32_t> out) const {
  TC_CHECK(first >= 0 && first <= tokens_ && std::ssize(out) <= tokens_ - first);
  const int64_t begin = first * token_bytes_;
  TC_RETURN_IF_ERROR(CheckBlocks(begin, begin + std::ssize(out) * token_bytes_));
  const std::byte* from = token_data_.data() + begin;
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
    TC_RETURN_IF_ERROR(AppendBytes(std::as_bytes(std::span(narrow).first(count))));
    tokens_ += static_cast<int64_t>(count);
    tokens = tokens.subspan(count);
  }
  return OkStatus();
}

Status TokenFileWriter::AppendBytes(std::span<const std::byte> bytes) {
  TC_RETURN_IF_ERROR(file_.Append(bytes));
  while (!bytes.empty()) {
    const size_t part = std::min(bytes.size(), static_cast<size_t>(kBlockBytes - block_bytes_));
    block_sum_.Add(bytes.first(part));
    block_bytes_ += static_cast<int64_t>(part);
    bytes = bytes.subspan(part);
    if (block_bytes_ == kBlockBytes) EndBlock();
  }
  return OkStatus();
}

void TokenFileWriter::EndBlock() {
  if (block_bytes_ > 0) sums_.push_back(block_sum_.value());
  block_sum_ = {};
  block_bytes_ = 0;
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
  TC_RETURN_IF_ERROR(AppendBytes(std::span(zeros).first(static_cast<size_t>(padding))));
  EndBlock();
  const std::array<uint64_t, 4> counts = {static_cast<uint64_t>(vocab_size_), fingerprint_,
                                          static_cast<uint64_t>(tokens_), starts_.size() - 1};
  const std::span<const std::byte> sum_bytes = std::as_bytes(std::span(sums_)),
                                   offset_bytes = std::as_bytes(std::span(starts_)),
                                   count_bytes = std::as_bytes(std::span(counts));
  for (const auto& part : {sum_bytes, offset_bytes, count_bytes}) TC_RETURN_IF_ERROR(file_.Append(part));
  const auto header = Header(static_cast<uint32_t>(token_bytes));
  const uint64_t checksum = Checksum({header, sum_bytes, offset_bytes, count_bytes});
  TC_RETURN_IF_ERROR(file_.Append(std::as_bytes(std::span(&checksum, 1))));
  TC_RETURN_IF_ERROR(file_.Append(kEndMagic));
  return file_.Commit();
}

}  // namespace tensorcache::data
