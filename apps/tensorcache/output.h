// What commands write: to standard output, to standard error, to files that the user names.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "tensorcache/status.h"

namespace tensorcache::cli {

// Nobody takes what the command prints, so it ends; RunProgram catches it.
class OutputLost : public std::system_error {
 public:
  explicit OutputLost(int error) : std::system_error(error, std::generic_category()) {}
};

// False, with errno, if the descriptor does not take all of it.
bool WriteAll(int descriptor, std::string_view text);

// To standard output, at once. Throws OutputLost.
void PrintText(std::string_view text);
template <class... T>
void Print(fmt::format_string<T...> format, T&&... values) {
  PrintText(fmt::format(format, std::forward<T>(values)...));
}

// To standard error, at once. What nobody takes is dropped: it only accompanies the work.
void NoteText(std::string_view text);
template <class... T>
void Note(fmt::format_string<T...> format, T&&... values) {
  NoteText(fmt::format(format, std::forward<T>(values)...));
}

// kNotFound, kInvalidArgument or kIoError now if `path` cannot be written later: checked before hours of work, not after.
// An empty path is fine.
Status CheckOutputPath(const std::string& path);

// Writes `text` to `path`, all or nothing if it is a file; to devices, pipes and /dev/stdout directly. An empty path writes
// nothing. Throws OutputLost if the reader of a pipe is gone.
Status WriteOutput(const std::string& path, const std::string& text);

}  // namespace tensorcache::cli
