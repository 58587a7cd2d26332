#include "runtime/state_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include "core/text.h"

namespace tensorcache::runtime {
namespace {

constexpr char kMark[8] = {'T', 'C', 'S', 'T', 'A', 'T', 'E', '\n'};
constexpr uint32_t kOldVersion = kLogitsVersion, kVersion = 3;

struct Header {
  char mark[8];
  uint32_t version;
  uint32_t kind;
  uint64_t config;  // version 2: the fingerprint; later: bytes of the keys and values that follow the header
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

// A line "key value" for each.
std::string TextOf(const StateKeys& keys) {
  std::string text;
  for (const auto& [key, value] : keys) text += fmt::format("{} {}\n", key, value);
  return text;
}

// Replaces those of *keys that the text has, and adds those it lacks; false if it is no such text, or not fit for a message.
bool ReadKeys(std::string_view text, StateKeys* keys) {
  const auto is_control = [](char c) { return (c >= 0 && c < ' ' && c != '\n') || c == '\x7F'; };
  if (!IsValidUtf8(text) || std::ranges::any_of(text, is_control)) return false;
  while (!text.empty()) {
    const size_t space = text.find(' '), end = text.find('\n');
    if (space >= end || end == text.npos) return false;
    (*keys)[std::string(text.substr(0, space))] = text.substr(space + 1, end - space - 1);
    text.remove_prefix(end + 1);
  }
  return true;
}

// "cache.window is 5, not 6; ..." for every key in which they differ.
std::string Differences(const StateKeys& saved, const StateKeys& wanted) {
  std::string text;
  const auto value = [](const StateKeys& keys, const std::string& key) {
    const auto found = keys.find(key);
    return found == keys.end() ? std::string("unknown") : found->second;
  };
  StateKeys all = saved;
  all.insert(wanted.begin(), wanted.end());
  for (const auto& [key, ignored] : all) {
    const std::string is = value(saved, key), should = value(wanted, key);
    if (is != should) text += fmt::format("{}{} is {}, not {}", text.empty() ? "" : "; ", key, is, should);
  }
  return text;
}

}  // namespace

Result<StateWriter> StateWriter::Create(const std::string& path, const StateOwner& owner, bool durable) {
  StateWriter writer;
  TC_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::Create(path, {.durable = durable}));
  writer.file_.emplace(std::move(file));
  writer.PutHeader(owner);
  return writer;
}

StateWriter StateWriter::ToBytes(std::vector<std::byte>* bytes, const StateOwner& owner) {
  StateWriter writer;
  writer.bytes_ = bytes;
  bytes->clear();
  writer.PutHeader(owner);
  return writer;
}

void StateWriter::PutHeader(const StateOwner& owner) {
  const std::string config = TextOf(owner.config);
  Header header{
      .version = kVersion, .kind = static_cast<uint32_t>(owner.kind), .config = config.size(), .model = owner.model};
  std::memcpy(header.mark, kMark, sizeof(kMark));
  Put(std::as_bytes(std::span(&header, 1)));
  Put(std::as_bytes(std::span(config)));
}

void StateWriter::Put(std::span<const std::byte> bytes) {
  checksum_.Add(bytes);
  if (bytes_ != nullptr) bytes_->insert(bytes_->end(), bytes.begin(), bytes.end());
  if (file_.has_value() && status_.ok()) status_ = file_->Append(bytes);
}

Status StateWriter::Commit() {
  const uint64_t checksum = checksum_.value();
  Put(std::as_bytes(std::span(&checksum, 1)));
  TC_RETURN_IF_ERROR(status_);
  return file_.has_value() ? file_->Commit() : OkStatus();
}

Result<StateReader> StateReader::Open(const std::string& path, const StateOwner& owner) {
  StateReader reader(path);
  TC_ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open(path));
  reader.file_.emplace(std::move(file));
  TC_RETURN_IF_ERROR(reader.Check(reader.file_->bytes(), owner));
  return reader;
}

Result<StateReader> StateReader::FromBytes(std::span<const std::byte> bytes, const std::string& name,
                                           const StateOwner& owner) {
  StateReader reader(name);
  TC_RETURN_IF_ERROR(reader.Check(bytes, owner));
  return reader;
}

Status StateReader::Check(std::span<const std::byte> bytes, const StateOwner& owner) {
  Header header;
  if (bytes.size() < sizeof(header) + kChecksumBytes) {
    return Corrupt(fmt::format("{}: {} bytes are too few for a saved state", path_, bytes.size()));
  }
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (std::memcmp(header.mark, kMark, sizeof(kMark)) != 0) {
    return Corrupt(fmt::format("{}: not a saved state of this program", path_));
  }
  if (header.version != kVersion && header.version != kOldVersion) {
    return Unsupported(fmt::format("{}: a saved state of version {}; this program reads versions {} and {}", path_,
                                   header.version, kOldVersion, kVersion));
  }
  Crc64 checksum;
  checksum.Add(bytes.first(bytes.size() - kChecksumBytes));
  uint64_t stored;
  std::memcpy(&stored, bytes.data() + bytes.size() - kChecksumBytes, kChecksumBytes);
  if (checksum.value() != stored) {
    return Corrupt(fmt::format("{}: the checksum is wrong; the file was cut short or damaged", path_));
  }
  if (header.kind != static_cast<uint32_t>(owner.kind)) {
    return InvalidArgument(fmt::format("{}: is the state of {}, not of {}", path_, NameOfKind(header.kind),
                                       NameOfKind(static_cast<uint32_t>(owner.kind))));
  }
  version_ = header.version;
  content_ = bytes.subspan(sizeof(header), bytes.size() - sizeof(header) - kChecksumBytes);
  return CheckOwner(header.config, header.model, owner);
}

// The config first: weights that a method does not use are not part of a model's fingerprint, so another method may make another
// fingerprint of one checkpoint.
Status StateReader::CheckOwner(uint64_t config, uint64_t model, const StateOwner& owner) {
  if (version_ == kOldVersion) {
    if (config != owner.old_config) {
      return InvalidArgument(
          fmt::format("{}: the state of a cache with another config (method, window, options, or fp32 against bf16); "
                      "give the one it was saved with",
                      path_));
    }
  } else {
    if (config > content_.size()) return Corrupt(fmt::format("{}: is shorter than what it says it holds", path_));
    const auto text = content_.first(static_cast<size_t>(config));
    content_ = content_.subspan(static_cast<size_t>(config));
    StateKeys saved = owner.defaults;
    if (!ReadKeys({reinterpret_cast<const char*>(text.data()), text.size()}, &saved)) {
      return Corrupt(fmt::format("{}: its config cannot be read", path_));
    }
    const std::string differences = Differences(saved, owner.config);
    if (!differences.empty()) {
      return InvalidArgument(
          fmt::format("{}: the state of another cache: {}; give the options it was saved with", path_, differences));
    }
  }
  if (model == owner.model) return OkStatus();
  return InvalidArgument(fmt::format("{}: the state of another model; its weights are not these", path_));
}

Status StateReader::Get(std::span<std::byte> bytes) {
  if (bytes.size() > content_.size()) {
    return Corrupt(fmt::format("{}: is shorter than what it says it holds", path_));
  }
  if (!bytes.empty()) std::memcpy(bytes.data(), content_.data(), bytes.size());
  content_ = content_.subspan(bytes.size());
  return OkStatus();
}

Status StateReader::ExpectEnd() const {
  return left() == 0 ? OkStatus() : Corrupt(fmt::format("{}: is longer than what it holds", path_));
}

}  // namespace tensorcache::runtime
