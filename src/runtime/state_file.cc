#include "runtime/state_file.h"

#include <fmt/format.h>

#include <cstring>

namespace tensorcache::runtime {
namespace {

constexpr char kMark[8] = {'T', 'C', 'S', 'T', 'A', 'T', 'E', '\n'};
constexpr uint32_t kVersion = 2;

struct Header {
  char mark[8];
  uint32_t version;
  uint32_t kind;
  uint64_t config;
  uint64_t model;
};
static_assert(sizeof(Header) == 32);
constexpr size_t kChecksumBytes = sizeof(uint64_t);

const char* NameOfKind(uint32_t kind) {
  switch (static_cast<StateKind>(kind)) {
    case StateKind::kCache: return "a cache";
    case StateKind::kSession: return "a session";
  }
  return "something unknown";
}

}  // namespace

Result<StateWriter> StateWriter::Create(const std::string& path, const StateOwner& owner) {
  TC_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::Create(path));
  StateWriter writer(std::move(file));
  Header header{
      .version = kVersion, .kind = static_cast<uint32_t>(owner.kind), .config = owner.config, .model = owner.model};
  std::memcpy(header.mark, kMark, sizeof(kMark));
  writer.Put(std::as_bytes(std::span(&header, 1)));
  return writer;
}

void StateWriter::Put(std::span<const std::byte> bytes) {
  checksum_.Add(bytes);
  if (status_.ok()) status_ = file_.Append(bytes);
}

Status StateWriter::Commit() {
  TC_RETURN_IF_ERROR(status_);
  const uint64_t checksum = checksum_.value();
  TC_RETURN_IF_ERROR(file_.Append(std::as_bytes(std::span(&checksum, 1))));
  return file_.Commit();
}

Result<StateReader> StateReader::Open(const std::string& path, const StateOwner& owner) {
  TC_ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open(path));
  StateReader reader(path, std::move(file));
  const std::span<const std::byte> bytes = reader.file_.bytes();
  Header header;
  if (bytes.size() < sizeof(header) + kChecksumBytes) {
    return Corrupt(fmt::format("{}: {} bytes are too few for a saved state", path, bytes.size()));
  }
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (std::memcmp(header.mark, kMark, sizeof(kMark)) != 0) {
    return Corrupt(fmt::format("{}: not a saved state of this program", path));
  }
  if (header.version != kVersion) {
    return Unsupported(
        fmt::format("{}: a saved state of version {}; this program reads version {}", path, header.version, kVersion));
  }
  Crc64 checksum;
  checksum.Add(bytes.first(bytes.size() - kChecksumBytes));
  uint64_t stored;
  std::memcpy(&stored, bytes.data() + bytes.size() - kChecksumBytes, kChecksumBytes);
  if (checksum.value() != stored) {
    return Corrupt(fmt::format("{}: the checksum is wrong; the file was cut short or damaged", path));
  }
  if (header.kind != static_cast<uint32_t>(owner.kind)) {
    return InvalidArgument(fmt::format("{}: is the state of {}, not of {}", path, NameOfKind(header.kind),
                                       NameOfKind(static_cast<uint32_t>(owner.kind))));
  }
  if (header.model != owner.model) {
    return InvalidArgument(fmt::format("{}: the state of another model; its weights are not these", path));
  }
  if (header.config != owner.config) {
    return InvalidArgument(
        fmt::format("{}: the state of a cache with another config (method, window, options, or fp32 against bf16); "
                    "give the one it was "
                    "saved with",
                    path));
  }
  reader.content_ = bytes.subspan(sizeof(header), bytes.size() - sizeof(header) - kChecksumBytes);
  return reader;
}

Status StateReader::Get(std::span<std::byte> bytes) {
  TC_ASSIGN_OR_RETURN(const std::span<const std::byte> from, Take(static_cast<int64_t>(bytes.size())));
  if (!bytes.empty()) std::memcpy(bytes.data(), from.data(), bytes.size());
  return OkStatus();
}

Status StateReader::ExpectEnd() const {
  return left() == 0 ? OkStatus() : Corrupt(fmt::format("{}: is longer than what it holds", path_));
}

Result<std::span<const std::byte>> StateReader::Take(int64_t bytes) {
  if (bytes < 0 || bytes > left()) return Corrupt(fmt::format("{}: is shorter than what it says it holds", path_));
  const std::span<const std::byte> taken = content_.first(static_cast<size_t>(bytes));
  content_ = content_.subspan(static_cast<size_t>(bytes));
  return taken;
}

}  // namespace tensorcache::runtime
