#include "core/folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <stdio.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <system_error>
#include <thread>
#include <tuple>

#include "core/file.h"
#include "core/text.h"

namespace tensorcache {
namespace {

namespace fs = std::filesystem;

constexpr char kLockFile[] = ".lock";

std::vector<fs::path> EntriesOf(const fs::path& folder, std::error_code& error) {
  std::vector<fs::path> entries;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    entries.push_back(it->path());
  }
  return entries;
}

bool IsLockFile(const fs::path& path) { return path.filename() == kLockFile; }

// Of a folder that is locked.
void RemoveContent(const fs::path& folder) {
  std::error_code ignored;
  for (const fs::path& entry : EntriesOf(folder, ignored)) {
    if (!IsLockFile(entry)) fs::remove_all(entry, ignored);
  }
}

// Owner, group and permissions. False if this process may not give them.
bool CopyAttributes(const fs::path& from, const fs::path& to) {
  struct stat wanted, given;
  if (stat(from.c_str(), &wanted) != 0 || stat(to.c_str(), &given) != 0) return false;
  const bool same_owner = wanted.st_uid == given.st_uid && wanted.st_gid == given.st_gid;
  if (!same_owner && chown(to.c_str(), wanted.st_uid, wanted.st_gid) != 0) return false;
  return chmod(to.c_str(), wanted.st_mode & 07777) == 0;
}

// Makes everything in `from` but `names` stand in `to` as well: files by links, folders by folders of the same name. What
// `to` has already stays. False if something cannot be linked.
bool LinkContent(const fs::path& from, const fs::path& to, const std::vector<std::string_view>& names) {
  std::error_code error;
  const std::vector<fs::path> entries = EntriesOf(from, error);
  if (error) return false;
  for (const fs::path& entry : entries) {
    const fs::path name = entry.filename(), target = to / name;
    if (std::ranges::find(names, name.native()) != names.end()) continue;
    if (fs::symlink_status(entry, error).type() != fs::file_type::directory) {
      if (link(entry.c_str(), target.c_str()) != 0 && errno != EEXIST) return false;
      continue;
    }
    if (mkdir(target.c_str(), 0700) != 0 && errno != EEXIST) return false;
    if (!LinkContent(entry, target, {}) || !CopyAttributes(entry, target)) return false;
  }
  return true;
}

bool IsInside(const fs::path& path, const fs::path& folder) {
  return (path.native() + "/").starts_with(folder.native() + "/");
}

bool IsSameMount(const fs::path& a, const fs::path& b) {
  const auto mount_of = [](const fs::path& path) {
    struct statx info = {};
    const int error = statx(AT_FDCWD, path.c_str(), 0, STATX_MNT_ID, &info);
    return std::tuple(error, info.stx_dev_major, info.stx_dev_minor, info.stx_mnt_id);
  };
  return mount_of(a) == mount_of(b);
}

// As far as can be known before it is tried.
bool CanBeExchanged(const fs::path& folder) {
  const fs::path parent = folder.parent_path();
  std::error_code ignored;
  // A process in the folder would find itself in the old one, which is removed.
  return folder.has_filename() && !IsInside(fs::current_path(ignored), folder) && IsSameMount(folder, parent) &&
         access(parent.c_str(), W_OK) == 0;
}

// What the names of staging folders start with, beside `folder` or in it.
std::string StagingPrefix(const fs::path& folder, bool beside) {
  return beside ? (folder.parent_path() / ("." + folder.filename().native() + ".tmp-")).native()
                : (folder / ".tmp-").native();
}

std::string NewStagingPath(const fs::path& folder, bool beside) {
  static std::atomic<int> counter = 0;
  while (true) {
    std::string path = fmt::format("{}{}-{}", StagingPrefix(folder, beside), getpid(), counter.fetch_add(1));
    if (!Exists(path)) return path;  // nobody else makes one: the folder is locked
  }
}

void RemoveAbandonedStaging(const std::string& prefix) {
  std::error_code ignored;
  for (const fs::path& entry : EntriesOf(fs::path(prefix).parent_path(), ignored)) {
    const std::string& path = entry.native();
    if (!path.starts_with(prefix) || path.find_first_not_of("0123456789-", prefix.size()) != path.npos) continue;
    if (fs::symlink_status(entry, ignored).type() != fs::file_type::directory) continue;
    {
      const auto lock = FolderLock::Take(path, FolderLock::Wait::kNo);
      if (!lock.ok() || !lock->excludes_others()) continue;
      RemoveContent(entry);
    }
    rmdir(path.c_str());
  }
}

Status RemoveFile(const fs::path& path) {
  return unlink(path.c_str()) == 0 || errno == ENOENT ? OkStatus() : ErrnoStatus("replace", path.native(), errno);
}

Status SyncFolder(const fs::path& folder) {
  const int error = SyncDirectory(folder.native());
  return error == 0 ? OkStatus() : ErrnoStatus("sync the directory", folder.native(), error);
}

}  // namespace

Result<FolderLock> FolderLock::Take(const std::string& folder, Wait wait) {
  const bool made = !Exists(folder);
  for (int tries = wait == Wait::kNo ? 1 : 20; tries > 0; --tries) {
    TC_RETURN_IF_ERROR(MakeFolder(folder));
    std::error_code error;
    fs::path path = fs::canonical(folder, error);
    if (error) continue;  // it was there a moment ago: look again
    const fs::path file = path / kLockFile;
    Descriptor fd(
        Retry([&] { return open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666); }));
    if (fd.get() < 0 && errno == ENOENT) continue;
    if (fd.get() < 0) return ErrnoStatus("lock", folder, errno);
    const LockResult lock = TryLock(fd.get());
    if (lock == LockResult::kUnknown || (lock == LockResult::kLocked && IsStillAt(fd.get(), file.native()))) {
      return FolderLock(std::move(path), std::move(fd), lock == LockResult::kLocked, made);
    }
    if (tries > 1) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  return InvalidArgument(
      fmt::format("{}: another program writes to this folder; wait for it, or choose another folder", folder));
}

FolderLock::~FolderLock() {
  if (!is_held()) return;
  const fs::path file = folder_ / kLockFile;
  if (IsStillAt(fd_.get(), file.native())) unlink(file.c_str());
  if (made_) rmdir(folder_.c_str());
}

int FolderLock::ExchangeWith(FolderLock& other) {
  if (renameat2(AT_FDCWD, folder_.c_str(), AT_FDCWD, other.folder_.c_str(), RENAME_EXCHANGE) != 0) return errno;
  std::swap(fd_, other.fd_);
  return 0;
}

int FolderLock::MoveTo(const fs::path& path) {
  if (rename(folder_.c_str(), path.c_str()) != 0) return errno;
  folder_ = path;
  return 0;
}

Result<FolderReplacement> FolderReplacement::Begin(const std::string& folder, FileSet old_files) {
  TC_ASSIGN_OR_RETURN(FolderLock lock, FolderLock::Take(folder));
  const fs::path path = lock.folder();
  for (const bool beside : {true, false}) RemoveAbandonedStaging(StagingPrefix(path, beside));
  RemoveAbandonedTemporaries(path.native(), std::chrono::seconds(0));
  TC_ASSIGN_OR_RETURN(FolderLock staging, FolderLock::Take(NewStagingPath(path, CanBeExchanged(path))));
  return FolderReplacement(std::move(lock), std::move(staging), std::move(old_files));
}

FolderReplacement::~FolderReplacement() {
  if (staging_.is_held()) RemoveContent(staging_.folder());
}

Status FolderReplacement::Commit() {
  for (const std::string_view name : old_files_.names) {
    const fs::path path = folder_.folder() / name;
    if (IsFolder(path)) {
      return InvalidArgument(fmt::format("{} is a folder, in the way of a file; move it away", Quoted(path.native())));
    }
  }
  std::error_code error;
  std::vector<fs::path> names;
  for (const fs::path& entry : EntriesOf(staging(), error)) {
    if (!IsLockFile(entry)) names.push_back(entry.filename());
  }
  if (error) return ErrnoStatus("read", staging().native(), error.value());
  if (!IsInside(staging(), folder_.folder()) && Exchange()) return SyncFolder(folder_.folder().parent_path());
  return PutInPlace(names);
}

bool FolderReplacement::Exchange() {
  std::vector<std::string_view> replaced = old_files_.names;
  replaced.push_back(kLockFile);
  if (!LinkContent(folder_.folder(), staging(), replaced)) return false;
  if (!CopyAttributes(folder_.folder(), staging()) || SyncDirectory(staging().native()) != 0) return false;
  if (folder_.ExchangeWith(staging_) != 0) return false;
  (void)LinkContent(staging(), folder_.folder(), replaced);  // what came since the first time
  return true;
}

Status FolderReplacement::PutInPlace(const std::vector<fs::path>& names) {
  const fs::path folder = folder_.folder();
  if (!IsInside(staging(), folder)) {  // first, for this fails if the files cannot be moved
    if (const int error = staging_.MoveTo(NewStagingPath(folder, false)); error != 0) {
      return ErrnoStatus("write to", folder.native(), error);
    }
  }
  TC_RETURN_IF_ERROR(RemoveFile(folder / old_files_.key));
  TC_RETURN_IF_ERROR(SyncFolder(folder));
  for (const std::string_view name : old_files_.names) TC_RETURN_IF_ERROR(RemoveFile(folder / name));
  const auto put = [&](const fs::path& name) -> Status {
    const fs::path target = folder / name;
    if (rename((staging() / name).c_str(), target.c_str()) == 0) return OkStatus();
    return ErrnoStatus("write", target.native(), errno);
  };
  for (const fs::path& name : names) {
    if (name != old_files_.key) TC_RETURN_IF_ERROR(put(name));
  }
  TC_RETURN_IF_ERROR(SyncFolder(folder));
  if (std::ranges::find(names, fs::path(old_files_.key)) != names.end()) TC_RETURN_IF_ERROR(put(old_files_.key));
  return SyncFolder(folder);
}

}  // namespace tensorcache
