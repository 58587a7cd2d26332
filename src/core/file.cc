#include "core/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <atomic>
#include <mutex>
#include <system_error>
#include <unordered_set>

#include "core/check.h"
#include "core/text.h"

namespace tensorcache {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kTemporaryMark = ".tmp-";

Status NotAFile(const std::string& path) {
  return InvalidArgument(fmt::format("cannot open {}: not a regular file; give the path of a file", Quoted(path)));
}

// An open descriptor of this process, by name.
bool IsInherited(std::string_view path) {
  return path == "/dev/stdin" || path.starts_with("/dev/fd/") || path.starts_with("/proc/self/fd/");
}

struct OpenFile {
  Descriptor fd;
  bool is_stream = false;
  size_t size = 0;
};

Result<OpenFile> OpenToRead(const std::string& path) {
  // O_NONBLOCK: opening a pipe that nobody writes to would otherwise wait forever.
  OpenFile file{
      .fd = Descriptor(Retry([&] { return open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY); }))};
  const int fd = file.fd.get();
  if (fd < 0) return errno == ENXIO ? NotAFile(path) : ErrnoStatus("open", path, errno);  // ENXIO: a socket
  struct stat info;
  if (fstat(fd, &info) != 0) return ErrnoStatus("open", path, errno);
  if (S_ISDIR(info.st_mode)) return ErrnoStatus("open", path, EISDIR);
  file.is_stream = IsInherited(path) && (S_ISFIFO(info.st_mode) || isatty(fd) == 1);
  if (!S_ISREG(info.st_mode) && !file.is_stream) return NotAFile(path);
  file.size = static_cast<size_t>(info.st_size);
  return file;
}

// read(), which waits for a stream until a signal comes.
ssize_t ReadSome(const OpenFile& file, std::span<char> out) {
  while (true) {
    const ssize_t count = read(file.fd.get(), out.data(), out.size());
    if (count >= 0) return count;
    if (file.is_stream && errno == EAGAIN) {
      pollfd ready = {.fd = file.fd.get(), .events = POLLIN, .revents = 0};
      if (poll(&ready, 1, -1) < 0) return -1;
    } else if (file.is_stream || errno != EINTR) {
      return -1;
    }
  }
}

// 0 once everything is written, or errno.
int WriteAll(int fd, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = Retry([&] { return write(fd, bytes.data(), bytes.size()); });
    if (count < 0) return errno;
    bytes = bytes.subspan(static_cast<size_t>(count));
  }
  return 0;
}

std::string DirectoryOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

// "<something>.tmp-<pid>-<n>".
bool IsTemporary(std::string_view name) {
  const auto is_number = [](std::string_view text) {
    return !text.empty() && text.find_first_not_of("0123456789") == text.npos;
  };
  const size_t mark = name.rfind(kTemporaryMark);
  if (mark == name.npos || mark == 0) return false;
  const std::string_view numbers = name.substr(mark + kTemporaryMark.size());
  const size_t dash = numbers.find('-');
  return dash != numbers.npos && is_number(numbers.substr(0, dash)) && is_number(numbers.substr(dash + 1));
}

void RemoveIfAbandoned(const std::string& path, std::chrono::seconds age) {
  const Descriptor fd(open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW));
  struct stat info;
  if (fd.get() < 0 || fstat(fd.get(), &info) != 0) return;
  if (!S_ISREG(info.st_mode) || info.st_uid != geteuid()) return;
  // An empty one may be new, and not locked yet.
  const std::chrono::seconds wanted = info.st_size > 0 ? age : kAbandonedAge;
  if (time(nullptr) - info.st_mtime < wanted.count()) return;
  if (TryLock(fd.get()) == LockResult::kLocked && IsStillAt(fd.get(), path)) unlink(path.c_str());
}

// Whether this process has not written there yet.
bool IsNewDirectory(const std::string& directory) {
  constexpr size_t kMaxRemembered = 1000;
  static std::mutex mutex;
  static std::unordered_set<std::string> seen;
  const std::lock_guard lock(mutex);
  if (seen.size() >= kMaxRemembered) seen.clear();
  return seen.insert(directory).second;
}

}  // namespace

Result<MappedFile> MappedFile::Open(const std::string& path) {
  TC_ASSIGN_OR_RETURN(const OpenFile file, OpenToRead(path));
  if (file.is_stream) return NotAFile(path);
  if (file.size == 0) return MappedFile(std::span<const std::byte>());
  void* data = mmap(nullptr, file.size, PROT_READ, MAP_PRIVATE, file.fd.get(), 0);
  if (data == MAP_FAILED) return ErrnoStatus("map", path, errno);
  return MappedFile(std::span(static_cast<const std::byte*>(data), file.size));
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
  TC_ASSIGN_OR_RETURN(const OpenFile file, OpenToRead(path));
  // Grows with what is there, not with the size a file claims: pipes and /proc claim none.
  constexpr size_t kChunk = 1 << 18;
  std::string content;
  while (true) {
    const size_t size = content.size();
    content.resize(size + kChunk);
    const ssize_t count = ReadSome(file, std::span(content).subspan(size));
    if (count < 0) return ErrnoStatus("read", path, errno);
    content.resize(size + static_cast<size_t>(count));
    if (std::ssize(content) > max_bytes) {
      return InvalidArgument(fmt::format("cannot read {}: longer than the {} bytes allowed", Quoted(path), max_bytes));
    }
    if (count == 0) return content;
  }
}

Result<AtomicFile> AtomicFile::Create(const std::string& path, const AtomicFileOptions& options) {
  static std::atomic<int> counter = 0;
  struct stat info;
  if (stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode)) {
    if (S_ISDIR(info.st_mode)) return ErrnoStatus("write", path, EISDIR);
    // The rename would put a file in the place of a device or pipe.
    return InvalidArgument(fmt::format("cannot replace {}: it is not a regular file; choose another path", path));
  }
  if (const std::string directory = DirectoryOf(path); IsNewDirectory(directory)) RemoveAbandonedTemporaries(directory);
  while (true) {
    std::string temporary = fmt::format("{}{}{}-{}", path, kTemporaryMark, getpid(), counter.fetch_add(1));
    Descriptor fd(Retry([&] { return open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666); }));
    if (fd.get() >= 0) {
      (void)TryLock(fd.get());  // for those who look for what is abandoned
      return AtomicFile(path, std::move(temporary), std::move(fd), options);
    }
    // A killed process of the same number, or one of another host, may have left this name.
    if (errno != EEXIST) return ErrnoStatus("write", path, errno);
  }
}

AtomicFile::AtomicFile(std::string path, std::string temporary, Descriptor fd, const AtomicFileOptions& options)
    : path_(std::move(path)), temporary_(std::move(temporary)), fd_(std::move(fd)), options_(options) {}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_(std::exchange(other.temporary_, {})),
      fd_(std::move(other.fd_)),
      options_(other.options_),
      status_(std::move(other.status_)) {}

AtomicFile::~AtomicFile() {
  if (!temporary_.empty()) unlink(temporary_.c_str());
}

Status AtomicFile::Fail(std::string_view action, int error) {
  const Status cause = ErrnoStatus(action, path_, error);
  status_ = {cause.code(), cause.message() + " (what was there before is unchanged)"};
  unlink(temporary_.c_str());
  temporary_.clear();
  fd_.Close();
  return status_;
}

Status AtomicFile::Append(std::span<const std::byte> bytes) {
  if (!status_.ok()) return status_;
  TC_CHECK(fd_.get() >= 0);  // after Commit()
  const int error = WriteAll(fd_.get(), bytes);
  return error == 0 ? OkStatus() : Fail("write", error);
}

Status AtomicFile::Append(std::string_view text) { return Append(std::as_bytes(std::span(text))); }

int AtomicFile::Flush() const {
  if (options_.durable) return Retry([&] { return fsync(fd_.get()); }) == 0 ? 0 : errno;
  // Network file systems write, and complain, when a descriptor is closed. The lock stays with the other one.
  const int copy = dup(fd_.get());
  if (copy < 0) return errno;
  return close(copy) == 0 || errno == EINTR ? 0 : errno;
}

Status AtomicFile::Commit() {
  if (!status_.ok()) return status_;
  TC_CHECK(fd_.get() >= 0);  // a second Commit()
  if (const int error = Flush(); error != 0) return Fail("sync", error);
  if (rename(temporary_.c_str(), path_.c_str()) != 0) return Fail("replace", errno);
  temporary_.clear();
  fd_.Close();
  if (!options_.durable) return OkStatus();
  if (const int error = SyncDirectory(DirectoryOf(path_)); error != 0) {
    return ErrnoStatus("sync the directory after replacing", path_, error);
  }
  return OkStatus();
}

Status WriteFileAtomically(const std::string& path, std::string_view content, const AtomicFileOptions& options) {
  TC_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::Create(path, options));
  TC_RETURN_IF_ERROR(file.Append(content));
  return file.Commit();
}

void RemoveAbandonedTemporaries(const std::string& folder, std::chrono::seconds age) {
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (IsTemporary(it->path().filename().native())) RemoveIfAbandoned(it->path().native(), age);
  }
}

Result<AppendedFile> AppendedFile::Open(const std::string& path) {
  Descriptor fd(Retry([&] {  // O_NONBLOCK: a pipe that nobody reads from
    return open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0666);
  }));
  struct stat info;
  if (fd.get() < 0) return errno == ENXIO ? NotAFile(path) : ErrnoStatus("write", path, errno);
  if (fstat(fd.get(), &info) != 0) return ErrnoStatus("write", path, errno);
  if (!S_ISREG(info.st_mode)) return NotAFile(path);
  return AppendedFile(path, std::move(fd));
}

Status AppendedFile::Append(std::string_view text) {
  struct stat before;
  if (fstat(fd_.get(), &before) != 0) return ErrnoStatus("write", path_, errno);
  const int error = WriteAll(fd_.get(), std::as_bytes(std::span(text)));
  if (error == 0) return OkStatus();
  (void)!ftruncate(fd_.get(), before.st_size);  // nothing more can be done if this fails, too
  return ErrnoStatus("write", path_, error);
}

bool Exists(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

bool IsFolder(const fs::path& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}

Status MakeFolder(const std::string& path) {
  std::error_code error;
  if (fs::exists(path, error) && !fs::is_directory(path, error)) {
    return InvalidArgument(fmt::format("{} is a file; name a folder", Quoted(path)));
  }
  fs::create_directories(path, error);
  if (error) return ErrnoStatus("make the folder", path, error.value());
  return OkStatus();
}

}  // namespace tensorcache
