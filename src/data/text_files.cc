// The half of corpus.h that looks at files without tokenising them.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <system_error>

#include "core/file.h"
#include "core/text.h"
#include "data/corpus.h"
#include "tokenizer/unicode.h"

namespace tensorcache::data {
namespace {

namespace fs = std::filesystem;

Status FileError(const fs::path& path, const std::error_code& error) {
  const auto code = error == std::errc::no_such_file_or_directory ? StatusCode::kNotFound : StatusCode::kIoError;
  return {code, fmt::format("cannot read {}: {}; check the path and its permissions", Quoted(path.native()),
                            error.message())};
}

bool IsHidden(const fs::path& path) { return path.filename().native().starts_with('.'); }

Status ListFolder(const fs::path& folder, std::vector<TextFile>* files) {
  std::error_code error;
  fs::recursive_directory_iterator at(folder, error);
  if (error) return FileError(folder, error);
  while (at != fs::recursive_directory_iterator()) {
    const bool is_folder = at->is_directory(error);
    if (IsHidden(at->path())) {
      if (is_folder) at.disable_recursion_pending();
    } else if (at->is_regular_file(error)) {
      TC_ASSIGN_OR_RETURN(TextFile file, DescribeTextFile(at->path().native()));
      if (file.bytes > 0) files->push_back(std::move(file));
    }
    const fs::path before = at->path();
    at.increment(error);
    if (error) return FileError(before, error);
  }
  std::ranges::sort(*files, {}, &TextFile::path);
  return OkStatus();
}

}  // namespace

Result<TextFile> DescribeTextFile(const std::string& path) {
  std::error_code error;
  const auto bytes = fs::file_size(path, error);
  if (error) return FileError(path, error);
  const auto modified = fs::last_write_time(path, error);
  if (error) return FileError(path, error);
  return TextFile{.path = path,
                  .bytes = static_cast<int64_t>(bytes),
                  .modified = std::chrono::nanoseconds(modified.time_since_epoch()).count()};
}

Status CheckUtf8(std::string_view text, const std::string& path, size_t offset) {
  const size_t bad = Utf8ErrorOffset(text);
  if (bad == text.size()) return OkStatus();
  return InvalidArgument(
      fmt::format("{} is not UTF-8 text (byte {}); convert it or take it away", Quoted(path), offset + bad));
}

Result<std::vector<TextFile>> ListTextFiles(const std::string& path) {
  std::error_code error;
  const fs::path absolute = fs::canonical(path, error);
  if (error) return FileError(path, error);
  std::vector<TextFile> files;
  if (fs::is_directory(absolute, error)) {
    TC_RETURN_IF_ERROR(ListFolder(absolute, &files));
    if (files.empty())
      return InvalidArgument(fmt::format("no text in {}: give a folder with text files", Quoted(path)));
    return files;
  }
  if (!fs::is_regular_file(absolute, error)) {
    return InvalidArgument(fmt::format("{} is neither a file nor a folder", Quoted(path)));
  }
  TC_ASSIGN_OR_RETURN(TextFile file, DescribeTextFile(absolute.native()));
  if (file.bytes == 0) return InvalidArgument(fmt::format("{} is empty; give a text", Quoted(path)));
  files.push_back(std::move(file));
  return files;
}

Result<std::string> DistinctCharacters(const TextDataConfig& config) {
  TC_ASSIGN_OR_RETURN(std::vector<TextFile> files, ListTextFiles(config.path));
  if (!config.valid_path.empty()) {
    TC_ASSIGN_OR_RETURN(const std::vector<TextFile> more, ListTextFiles(config.valid_path));
    files.insert(files.end(), more.begin(), more.end());
  }
  constexpr size_t kCodePoints = 0x110000;
  std::string characters;
  std::vector<bool> seen(kCodePoints);
  for (const TextFile& file : files) {
    TC_ASSIGN_OR_RETURN(const MappedFile mapping, MappedFile::Open(file.path));
    const std::string_view text(reinterpret_cast<const char*>(mapping.bytes().data()), mapping.bytes().size());
    TC_RETURN_IF_ERROR(CheckUtf8(text, file.path, 0));
    for (size_t at = 0; at < text.size();) {
      const tokenizer::Utf8Char character = tokenizer::DecodeUtf8(text, at);
      const auto length = static_cast<size_t>(character.length);
      if (!seen[character.code]) characters += text.substr(at, length);
      seen[character.code] = true;
      at += length;
    }
  }
  return characters;
}

}  // namespace tensorcache::data
