#include "apps/tensorcache/output.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "core/file.h"
#include "core/text.h"

namespace tensorcache::cli {

bool WriteAll(int descriptor, std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = write(descriptor, text.data(), text.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return false;
    text.remove_prefix(static_cast<size_t>(count));
  }
  return true;
}

void PrintText(std::string_view text) {
  if (!WriteAll(STDOUT_FILENO, text)) throw OutputLost(errno);
}

void NoteText(std::string_view text) { WriteAll(STDERR_FILENO, text); }

Status CheckOutputPath(const std::string& path) {
  if (path.empty()) return OkStatus();
  if (path == "-") return InvalidArgument("'-' is no file name here; for standard output give /dev/stdout");
  if (IsFolder(path)) return InvalidArgument(fmt::format("cannot write {}: it is a folder; name a file", Quoted(path)));
  std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (folder.empty()) folder = ".";
  if (!IsFolder(folder)) {
    return NotFound(
        fmt::format("cannot write {}: there is no folder {}; make it first", Quoted(path), Quoted(folder.string())));
  }
  if (access(folder.c_str(), W_OK) != 0) {
    return IoError(fmt::format("cannot write {}: no permission to write in {}; choose another folder", Quoted(path),
                               Quoted(folder.string())));
  }
  return OkStatus();
}

Status WriteOutput(const std::string& path, const std::string& text) {
  if (path.empty()) return OkStatus();
  std::error_code error;
  const auto kind = std::filesystem::status(path, error).type();
  const bool file = kind == std::filesystem::file_type::regular || kind == std::filesystem::file_type::not_found;
  if (file && !path.starts_with("/dev/") && !path.starts_with("/proc/")) {
    const auto target = std::filesystem::weakly_canonical(path, error);  // a link stays a link
    return WriteFileAtomically(error ? path : target.string(), text);
  }
  // A pipe or device is written to: a rename would put a file in the place of /dev/null.
  const int descriptor = open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
  const bool written = descriptor >= 0 && WriteAll(descriptor, text);
  const int failure = errno;
  if (descriptor >= 0) close(descriptor);
  if (written) return OkStatus();
  if (failure == EPIPE) throw OutputLost(failure);
  return IoError(fmt::format("cannot write {}: {}", Quoted(path), std::generic_category().message(failure)));
}

}  // namespace tensorcache::cli
