#include "core/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <system_error>
#include <utility>

#include "core/check.h"
#include "core/text.h"

namespace tensorcache {
namespace {

// A file descriptor that closes itself.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

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

Status ErrnoStatus(std::string_view action, const std::string& path, int error) {
  const auto code = error == ENOENT || error == ENOTDIR ? StatusCode::kNotFound
                    : error == EISDIR                   ? StatusCode::kInvalidArgument
                                                        : StatusCode::kIoError;
  return {code, fmt::format("cannot {} {}: {}{}", action, Quoted(path), std::generic_category().message(error),
                            Advice(error))};
}

// Calls f() again when a signal interrupted it.
template <class F>
auto Retry(F f) {
  decltype(f()) result;
  do {
    result = f();
  } while (result < 0 && errno == EINTR);
  return result;
}

std::string DirectoryOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

// Makes the rename that happened in `directory` survive a power failure.
int SyncDirectory(const std::string& directory) {
  const Descriptor fd(open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.get() < 0) return errno;
  // Some file systems cannot sync a directory and say EINVAL; there is nothing more to do on those.
  return fsync(fd.get()) == 0 || errno == EINVAL ? 0 : errno;
}

}  // namespace

Result<MappedFile> MappedFile::Open(const std::string& path) {
  // O_NONBLOCK: opening a pipe that nobody writes to would otherwise wait forever.
  const Descriptor fd(Retry([&] { return open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK); }));
  if (fd.get() < 0) return ErrnoStatus("open", path, errno);
  struct stat info;
  if (fstat(fd.get(), &info) != 0) return ErrnoStatus("open", path, errno);
  if (S_ISDIR(info.st_mode)) return ErrnoStatus("open", path, EISDIR);
  if (!S_ISREG(info.st_mode)) return InvalidArgument(fmt::format("cannot map {}: not a regular file", Quoted(path)));
  if (info.st_size == 0) return MappedFile(std::span<const std::byte>());
  const auto size = static_cast<size_t>(info.st_size);
  void* data = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (data == MAP_FAILED) return ErrnoStatus("map", path, errno);
  return MappedFile(std::span(static_cast<const std::byte*>(data), size));
}

MappedFile::MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  return *this;
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

Result<std::string> ReadWholeFile(const std::string& path, int64_t max_bytes) {
  TC_CHECK(max_bytes >= 0);
  const Descriptor fd(Retry([&] { return open(path.c_str(), O_RDONLY | O_CLOEXEC); }));
  if (fd.get() < 0) return ErrnoStatus("open", path, errno);
  // Grows with what is there, not with the size a file claims: pipes and /proc claim none.
  constexpr size_t kChunk = 1 << 18;
  std::string content;
  while (true) {
    const size_t size = content.size();
    content.resize(size + kChunk);
    const ssize_t count = Retry([&] { return read(fd.get(), content.data() + size, kChunk); });
    if (count < 0) return ErrnoStatus("read", path, errno);
    content.resize(size + static_cast<size_t>(count));
    if (std::ssize(content) > max_bytes) {
      return InvalidArgument(fmt::format("cannot read {}: longer than the {} bytes allowed", Quoted(path), max_bytes));
    }
    if (count == 0) return content;
  }
}

Result<AtomicFile> AtomicFile::Create(const std::string& path) {
  static std::atomic<int> counter = 0;
  struct stat info;
  if (stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode)) {
    if (S_ISDIR(info.st_mode)) return ErrnoStatus("write", path, EISDIR);
    // The rename would put a file in the place of a device or pipe.
    return InvalidArgument(fmt::format("cannot replace {}: it is not a regular file; choose another path", path));
  }
  while (true) {
    std::string temporary = fmt::format("{}.tmp-{}-{}", path, getpid(), counter.fetch_add(1));
    const int fd = Retry([&] { return open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666); });
    if (fd >= 0) return AtomicFile(path, std::move(temporary), fd);
    // A killed process of the same number may have left this name.
    if (errno != EEXIST) return ErrnoStatus("write", path, errno);
  }
}

AtomicFile::AtomicFile(std::string path, std::string temporary, int fd)
    : path_(std::move(path)), temporary_(std::move(temporary)), fd_(fd) {}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_(std::exchange(other.temporary_, {})),
      fd_(std::exchange(other.fd_, -1)),
      status_(std::move(other.status_)) {}

AtomicFile::~AtomicFile() {
  if (fd_ >= 0) close(fd_);
  if (!temporary_.empty()) unlink(temporary_.c_str());
}

Status AtomicFile::Fail(std::string_view action, int error) {
  const Status cause = ErrnoStatus(action, path_, error);
  status_ = {cause.code(), cause.message() + " (what was there before is unchanged)"};
  if (fd_ >= 0) close(std::exchange(fd_, -1));
  unlink(temporary_.c_str());
  temporary_.clear();
  return status_;
}

Status AtomicFile::Append(std::span<const std::byte> bytes) {
  if (!status_.ok()) return status_;
  TC_CHECK(fd_ >= 0);  // after Commit()
  while (!bytes.empty()) {
    const ssize_t count = Retry([&] { return write(fd_, bytes.data(), bytes.size()); });
    if (count < 0) return Fail("write", errno);
    bytes = bytes.subspan(static_cast<size_t>(count));
  }
  return OkStatus();
}

Status AtomicFile::Append(std::string_view text) { return Append(std::as_bytes(std::span(text))); }

Status AtomicFile::Commit() {
  if (!status_.ok()) return status_;
  TC_CHECK(fd_ >= 0);  // a second Commit()
  if (Retry([&] { return fsync(fd_); }) != 0) return Fail("sync", errno);
  if (close(std::exchange(fd_, -1)) != 0) return Fail("close", errno);
  if (rename(temporary_.c_str(), path_.c_str()) != 0) return Fail("replace", errno);
  temporary_.clear();
  if (const int error = SyncDirectory(DirectoryOf(path_)); error != 0) {
    return ErrnoStatus("sync the directory after replacing", path_, error);
  }
  return OkStatus();
}

bool Exists(const std::filesystem::path& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

bool IsFolder(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::is_directory(path, ignored);
}

Status MakeFolder(const std::string& path) {
  std::error_code error;
  if (std::filesystem::exists(path, error) && !std::filesystem::is_directory(path, error)) {
    return InvalidArgument(fmt::format("{} is a file; name a folder", Quoted(path)));
  }
  std::filesystem::create_directories(path, error);
  if (error) return IoError(fmt::format("cannot make the folder {}: {}", Quoted(path), error.message()));
  return OkStatus();
}

Status WriteFileAtomically(const std::string& path, std::string_view content) {
  TC_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::Create(path));
  TC_RETURN_IF_ERROR(file.Append(content));
  return file.Commit();
}

}  // namespace tensorcache
