// Files: read-only mappings, bounded reads, replacement that is all or nothing, and growth by whole pieces.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "core/posix_file.h"
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

// The content of a file; kInvalidArgument if it is longer than `max_bytes`. What is open already may be read, too: a pipe
// or terminal that is named /dev/stdin or /dev/fd/N, as a shell's <(...) is; a signal that is handled ends the wait for
// it with an error. Any other pipe, device or socket is kInvalidArgument: there might be no end to it.
Result<std::string> ReadWholeFile(const std::string& path, int64_t max_bytes);

struct AtomicFileOptions {
  bool durable = true;  // Commit() waits for the disk; without, a crash of the machine may lose old and new content
};

// A new content for `path`, written under a temporary name in the same directory and put in place by Commit(). Until
// then, and after any error, `path` is what it was before. Of several that write to one path, each puts a whole file in
// place, and the last one stays. If `path` is a symbolic link, the link is replaced, not what it points to; devices,
// pipes and directories are refused.
//
// Errors and destruction remove the temporary; only a killed process leaves it (`<path>.tmp-<pid>-<n>`). It is locked
// while it is written. What is left in a directory is removed when a process first writes there.
class AtomicFile {
 public:
  static Result<AtomicFile> Create(const std::string& path, const AtomicFileOptions& options = {});
  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&&) = delete;
  ~AtomicFile();

  // After an error, further calls return the same error.
  Status Append(std::span<const std::byte> bytes);
  Status Append(std::string_view text);
  // Syncs the content to disk, renames it to `path` and syncs the directory. At most once, last.
  Status Commit();

 private:
  AtomicFile(std::string path, std::string temporary, Descriptor fd, const AtomicFileOptions& options);
  // What the system says of everything that was written. 0, or errno.
  int Flush() const;
  Status Fail(std::string_view action, int error);

  std::string path_;
  std::string temporary_;  // empty once it is gone
  Descriptor fd_;          // locked
  AtomicFileOptions options_;
  Status status_;
};

Status WriteFileAtomically(const std::string& path, std::string_view content, const AtomicFileOptions& options = {});

// Removes the temporaries in `folder` that no living process writes: this user's, locked by nobody, and not written to
// for `age`. The age is for file systems whose locks other hosts do not see; 0 is for a folder that the caller alone
// writes to.
inline constexpr std::chrono::minutes kAbandonedAge{15};
void RemoveAbandonedTemporaries(const std::string& folder, std::chrono::seconds age = kAbandonedAge);

// A file that grows by whole pieces: after an error it is as long as before.
class AppendedFile {
 public:
  // Makes the file if it is not there.
  static Result<AppendedFile> Open(const std::string& path);
  // Handed to the system at once: a kill of the process loses none of it.
  Status Append(std::string_view text);

 private:
  AppendedFile(std::string path, Descriptor fd) : path_(std::move(path)), fd_(std::move(fd)) {}

  std::string path_;
  Descriptor fd_;
};

// False for what cannot be looked at, too.
bool Exists(const std::filesystem::path& path);
bool IsFolder(const std::filesystem::path& path);

// A folder and those above it; it may be there already.
Status MakeFolder(const std::string& path);

}  // namespace tensorcache
