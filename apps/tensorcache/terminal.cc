#include "apps/tensorcache/terminal.h"

#include <fmt/core.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace tensorcache::cli {

bool Utf8Terminal() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* value = std::getenv(name);
    if (value == nullptr || *value == '\0') continue;
    const std::string_view locale = value;
    return locale.find("UTF-8") != locale.npos || locale.find("utf8") != locale.npos ||
           locale.find("UTF8") != locale.npos;
  }
  return false;
}

std::string PlusMinus(double mean, double std) {
  return fmt::format("{:.1f} {} {:.1f}", mean, Utf8Terminal() ? "±" : "+-", std);
}

std::string PadLeft(const std::string& text, size_t width) {
  size_t columns = 0;
  for (const char c : text) columns += (static_cast<unsigned char>(c) & 0xC0) != 0x80;  // not a continuation byte
  return std::string(columns < width ? width - columns : 0, ' ') + text;
}

Progress::Progress(int total)
    : total_(total), terminal_(isatty(STDERR_FILENO) != 0), start_(Clock::now()), last_(start_) {}

Progress::~Progress() { Clear(); }

void Progress::Show(int done, const std::string& what) {
  const auto now = Clock::now();
  const double elapsed = std::chrono::duration<double>(now - start_).count();
  const double since_last = std::chrono::duration<double>(now - last_).count();
  if (terminal_ ? elapsed < 1 || (drawn_ && since_last < 0.1) : since_last < 10) return;
  last_ = now;
  const std::string left = done > 0 ? fmt::format(", {:.0f} s left", elapsed / done * (total_ - done)) : std::string();
  fmt::print(stderr, "{}[{}/{}] {}{}{}", terminal_ ? "\r" : "", done, total_, what, left, terminal_ ? "\033[K" : "\n");
  std::fflush(stderr);
  drawn_ = terminal_;
}

void Progress::Clear() {
  if (drawn_) fmt::print(stderr, "\r\033[K");
  drawn_ = false;
}

}  // namespace tensorcache::cli
