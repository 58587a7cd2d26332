#include "core/posix_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <system_error>

#include "core/text.h"

namespace tensorcache {
namespace {

std::string_view Advice(int error) {
  switch (error) {
    case ENOENT:
    case ENOTDIR: return "; check the path";
    case EACCES:
    case EPERM:
    case EROFS: return "; check the permissions";
    case EISDIR: return "; give the path of a file";
    case ENOSPC:
    case EDQUOT: return "; free some space";
    case EFBIG: return "; raise the file size limit";
    case EMFILE:
    case ENFILE: return "; raise the limit of open files";
    default: return "";
  }
}

}  // namespace

Status ErrnoStatus(std::string_view action, const std::string& path, int error) {
  const auto code = error == ENOENT || error == ENOTDIR ? StatusCode::kNotFound
                    : error == EISDIR                   ? StatusCode::kInvalidArgument
                                                        : StatusCode::kIoError;
  return {code, fmt::format("cannot {} {}: {}{}", action, Quoted(path), std::generic_category().message(error),
                            Advice(error))};
}

int SyncDirectory(const std::string& directory) {
  const Descriptor fd(open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.get() < 0) return errno;
  // Some file systems cannot sync a directory and say EINVAL; there is nothing more to do on those.
  return Retry([&] { return fsync(fd.get()); }) == 0 || errno == EINVAL ? 0 : errno;
}

LockResult TryLock(int fd) {
  if (Retry([&] { return flock(fd, LOCK_EX | LOCK_NB); }) == 0) return LockResult::kLocked;
  return errno == EWOULDBLOCK ? LockResult::kTaken : LockResult::kUnknown;
}

bool IsStillAt(int fd, const std::string& path) {
  struct stat opened, named;
  return fstat(fd, &opened) == 0 && lstat(path.c_str(), &named) == 0 && opened.st_dev == named.st_dev &&
         opened.st_ino == named.st_ino;
}

}  // namespace tensorcache
