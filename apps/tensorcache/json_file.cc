#include "apps/tensorcache/json_file.h"

#include <fmt/core.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <system_error>

#include "core/file.h"

namespace tensorcache::cli {

Status CheckOutputPath(const std::string& path) {
  if (path.empty()) return OkStatus();
  if (path == "-") return InvalidArgument("'-' is no file name here; for standard output give /dev/stdout");
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    return IoError(fmt::format("cannot write '{}': it is a folder; name a file", path));
  }
  std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (folder.empty()) folder = ".";
  if (!std::filesystem::is_directory(folder, error)) {
    return IoError(fmt::format("cannot write '{}': there is no folder '{}'; make it first", path, folder.string()));
  }
  if (access(folder.c_str(), W_OK) != 0) {
    return IoError(
        fmt::format("cannot write '{}': no permission to write in '{}'; choose another folder", path, folder.string()));
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
  std::ofstream stream(path, std::ios::app);
  stream << text << std::flush;
  return stream ? OkStatus()
                : IoError(fmt::format("cannot write '{}': it takes no more; is the device full, or the reader gone?",
                                      path));
}

}  // namespace tensorcache::cli
