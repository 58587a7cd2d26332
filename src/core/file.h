// Files: read-only mappings, bounded reads, and replacement that is all or nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "tensorcache/status.h"

namespace tensorcache {

// A regular file mapped read-only; unmapped on destruction. Movable: the bytes stay where they are. Another process
// that shortens the file while it is mapped makes reads of the lost pages fault, so replace files (AtomicFile), never
// rewrite.
class MappedFile {
 public:
  static Result<MappedFile> Open(const std::string& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  explicit MappedFile(std::span<const std::byte> bytes) : bytes_(bytes) {}

  std::span<const std::byte> bytes_;
};

// The content of a file, pipe or device; kInvalidArgument if it is longer than `max_bytes`.
Result<std::string> ReadWholeFile(const std::string& path, int64_t max_bytes);

// A new content for `path`, written under a temporary name in the same directory and put in place by Commit(). Until
// then, and after any error, `path` is what it was before. Errors and destruction remove the temporary; only a killed
// process leaves it (`<path>.tmp-<pid>-<n>`). If `path` is a symbolic link, the link is replaced, not what it points
// to; devices, pipes and directories are refused.
class AtomicFile {
 public:
  static Result<AtomicFile> Create(const std::string& path);
  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&&) = delete;
  ~AtomicFile();

  // After an error, further calls return the same error.
  Status Append(std::span<const std::byte> bytes);
  Status Append(std::string_view text);
  // Syncs the content to disk, renames it to `path` and syncs the directory. At most once, last.
  Status Commit();

 private:
  AtomicFile(std::string path, std::string temporary, int fd);
  Status Fail(std::string_view action, int error);

  std::string path_;
  std::string temporary_;  // empty once it is gone
  int fd_;
  Status status_;
};

// False for what cannot be looked at, too.
bool Exists(const std::filesystem::path& path);
bool IsFolder(const std::filesystem::path& path);

// A folder and those above it; it may be there already.
Status MakeFolder(const std::string& path);

Status WriteFileAtomically(const std::string& path, std::string_view content);

}  // namespace tensorcache
