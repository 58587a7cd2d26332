// Files of states: an 8-byte mark, a version, what kind of state of which model it is, the content, a checksum of it all. A
// reader knows that every byte is right before it looks at the content.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "core/checksum.h"
#include "core/file.h"
#include "tensorcache/status.h"

namespace tensorcache::runtime {

enum class StateKind : uint32_t { kCache = 1, kSession = 2 };

// Whose state it is.
struct StateOwner {
  StateKind kind = StateKind::kCache;
  uint64_t config = 0;  // fingerprint of what decides about the arrays
  uint64_t model = 0;   // fingerprint of the weights; 0: none
};

class StateWriter {
 public:
  static Result<StateWriter> Create(const std::string& path, const StateOwner& owner);
  // Errors are remembered until Commit.
  void Put(std::span<const std::byte> bytes);
  void Put(int64_t value) { Put(std::as_bytes(std::span(&value, 1))); }
  Status Commit();

 private:
  explicit StateWriter(AtomicFile file) : file_(std::move(file)) {}

  AtomicFile file_;
  Crc64 checksum_;
  Status status_;
};

class StateReader {
 public:
  // Checks mark, version, length, checksum and owner, in this order.
  static Result<StateReader> Open(const std::string& path, const StateOwner& owner);
  // kCorrupt if fewer bytes are left.
  Status Get(std::span<std::byte> bytes);
  Status Get(int64_t* value) { return Get(std::as_writable_bytes(std::span(value, 1))); }
  // The next bytes in place; valid as long as the reader.
  Result<std::span<const std::byte>> Take(int64_t bytes);
  // kCorrupt if bytes are left.
  Status ExpectEnd() const;
  int64_t left() const { return static_cast<int64_t>(content_.size()); }
  const std::string& path() const { return path_; }

 private:
  StateReader(std::string path, MappedFile file) : path_(std::move(path)), file_(std::move(file)) {}

  std::string path_;
  MappedFile file_;
  std::span<const std::byte> content_;
};

}  // namespace tensorcache::runtime
