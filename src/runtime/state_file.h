// Saved states, in files or in memory: an 8-byte mark, a version, what kind of state of which model and cache it is, the
// content, a checksum of it all. A reader knows that every byte is right before it looks at the content.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/checksum.h"
#include "core/file.h"
#include "tensorcache/status.h"

namespace tensorcache::runtime {

// States of this version know the cache's config by a fingerprint alone, and a session of it has logits.
inline constexpr uint32_t kLogitsVersion = 2;

enum class StateKind : uint32_t { kCache = 1, kSession = 2 };

// Values by the paths of their keys: "cache.window", "512".
using StateKeys = std::map<std::string, std::string>;

// Whose state it is.
struct StateOwner {
  StateKind kind = StateKind::kCache;
  StateKeys config;         // all that decides about the arrays
  StateKeys defaults;       // what keys stand for that an earlier program did not have
  uint64_t old_config = 0;  // a fingerprint of it, which is all that states of version 2 have
  uint64_t model = 0;       // fingerprint of the weights; 0: none
};

class StateWriter {
 public:
  // Into a file, which is replaced by Commit. `durable`: it is on the disk then.
  static Result<StateWriter> Create(const std::string& path, const StateOwner& owner, bool durable);
  // Into memory; Commit leaves everything in *bytes.
  static StateWriter ToBytes(std::vector<std::byte>* bytes, const StateOwner& owner);

  // Errors are remembered until Commit.
  void Put(std::span<const std::byte> bytes);
  void Put(int64_t value) { Put(std::as_bytes(std::span(&value, 1))); }
  Status Commit();

 private:
  StateWriter() = default;
  void PutHeader(const StateOwner& owner);

  std::optional<AtomicFile> file_;
  std::vector<std::byte>* bytes_ = nullptr;
  Crc64 checksum_;
  Status status_;
};

class StateReader {
 public:
  // Checks mark, version, length, checksum and owner, in this order.
  static Result<StateReader> Open(const std::string& path, const StateOwner& owner);
  // The same of bytes, which must outlive the reader; `name` is what errors call them.
  static Result<StateReader> FromBytes(std::span<const std::byte> bytes, const std::string& name,
                                       const StateOwner& owner);
  // kCorrupt if fewer bytes are left.
  Status Get(std::span<std::byte> bytes);
  Status Get(int64_t* value) { return Get(std::as_writable_bytes(std::span(value, 1))); }
  // kCorrupt if bytes are left.
  Status ExpectEnd() const;
  int64_t left() const { return static_cast<int64_t>(content_.size()); }
  const std::string& path() const { return path_; }
  uint32_t version() const { return version_; }

 private:
  explicit StateReader(std::string path) : path_(std::move(path)) {}
  Status Check(std::span<const std::byte> bytes, const StateOwner& owner);
  Status CheckOwner(uint64_t config, uint64_t model, const StateOwner& owner);

  std::string path_;
  std::optional<MappedFile> file_;
  std::span<const std::byte> content_;
  uint32_t version_ = 0;
};

}  // namespace tensorcache::runtime
