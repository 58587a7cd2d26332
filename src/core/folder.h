// Folders that one program at a time writes to, and the replacement of a set of files in one.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "core/posix_file.h"
#include "tensorcache/status.h"

namespace tensorcache {

// Keeps other programs from writing to a folder; reading needs no lock. It ends with the process, however that ends: it is
// an flock on the file `.lock` in the folder, which is removed when the lock is given back. Where the file system has no
// locks, everybody gets one.
class FolderLock {
 public:
  enum class Wait { kNo, kBriefly };
  // Makes the folder if it is not there. kInvalidArgument if another program has the lock; before it says so, it tries
  // for a second, because a process that was killed is not gone at once.
  static Result<FolderLock> Take(const std::string& folder, Wait wait = Wait::kBriefly);
  FolderLock(FolderLock&&) = default;
  FolderLock& operator=(FolderLock&&) = delete;
  ~FolderLock();

  // Without links.
  const std::filesystem::path& folder() const { return folder_; }
  // False once it was moved away.
  bool is_held() const { return fd_.get() >= 0; }
  // False where there are no locks.
  bool excludes_others() const { return excludes_others_; }

  // Swaps what the two paths stand for, in one step; each lock stays with its path. 0, or errno: not every file system
  // can do that, and a folder where a file system is mounted cannot be moved.
  int ExchangeWith(FolderLock& other);
  // Renames the folder. 0, or errno.
  int MoveTo(const std::filesystem::path& path);

 private:
  FolderLock(std::filesystem::path folder, Descriptor fd, bool excludes_others, bool made)
      : folder_(std::move(folder)), fd_(std::move(fd)), excludes_others_(excludes_others), made_(made) {}

  std::filesystem::path folder_;
  Descriptor fd_;
  bool excludes_others_;
  bool made_;  // by Take: removed at the end if it is empty
};

// A set of files that make one whole, such as a model.
struct FileSet {
  std::vector<std::string_view> names;  // all that may belong to it
  std::string_view key;                 // one of them; without it, the others count for nothing
};

// New files for a folder, in the place of those of an earlier set. They are written to staging(), a folder beside it, and
// Commit() exchanges the two: whoever looks, and whoever is killed, the folder has all of the old files or all of the new
// ones. What else is in the folder stays (files are linked into the new folder, so this costs no space).
//
// A folder that cannot be exchanged gets the files one by one: one that is a mount, or in which this process works, or
// that has something in it that cannot be linked, or whose owner this process cannot give to another folder. The key is
// removed first and comes last, so that there never is a mixture; but a kill in these milliseconds leaves no key.
//
// Without Commit() nothing changes. What killed processes left is removed by the next replacement of the same folder.
class FolderReplacement {
 public:
  // Takes the lock of `folder`, for as long as this lives.
  static Result<FolderReplacement> Begin(const std::string& folder, FileSet old_files);
  FolderReplacement(FolderReplacement&&) = default;
  FolderReplacement& operator=(FolderReplacement&&) = delete;
  ~FolderReplacement();

  // Files alone, each durable.
  const std::filesystem::path& staging() const { return staging_.folder(); }
  // At most once, last.
  Status Commit();

 private:
  FolderReplacement(FolderLock folder, FolderLock staging, FileSet old_files)
      : folder_(std::move(folder)), staging_(std::move(staging)), old_files_(std::move(old_files)) {}
  bool Exchange();
  Status PutInPlace(const std::vector<std::filesystem::path>& names);

  FolderLock folder_;
  FolderLock staging_;
  FileSet old_files_;
};

}  // namespace tensorcache
