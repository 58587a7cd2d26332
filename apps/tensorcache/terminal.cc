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

namespace {

std::string Bar(int done, int total) {
  constexpr int kWidth = 24;
  const int filled = total > 0 ? static_cast<int>(static_cast<int64_t>(kWidth) * done / total) : 0;
  std::string bar(static_cast<size_t>(kWidth), ' ');
  for (int i = 0; i < filled && i < kWidth; ++i) bar[static_cast<size_t>(i)] = '=';
  if (filled < kWidth) bar[static_cast<size_t>(filled)] = '>';
  return "[" + bar + "] ";
}

std::string Duration(double seconds) {
  const auto whole = static_cast<int64_t>(seconds + 0.5);
  if (whole < 100) return fmt::format("{} s", whole);
  if (whole < 6000) return fmt::format("{} min", (whole + 30) / 60);
  return fmt::format("{} h {:02} min", whole / 3600, whole % 3600 / 60);
}

}  // namespace

Progress::Progress(int total, int first)
    : total_(total), first_(first), terminal_(isatty(STDERR_FILENO) != 0), start_(Clock::now()), last_(start_) {}

Progress::~Progress() { Clear(); }

void Progress::Show(int done, const std::string& what) {
  const auto now = Clock::now();
  const double elapsed = std::chrono::duration<double>(now - start_).count();
  const double since_last = std::chrono::duration<double>(now - last_).count();
  if (terminal_ ? elapsed < 1 || (drawn_ && since_last < 0.1) : since_last < 10) return;
  last_ = now;
  const std::string left =
      done > first_ ? fmt::format(", {} left", Duration(elapsed / (done - first_) * (total_ - done))) : std::string();
  fmt::print(stderr, "{}{}/{} {}{}{}", terminal_ ? "\r" + Bar(done, total_) : "", done, total_, what, left,
             terminal_ ? "\033[K" : "\n");
  std::fflush(stderr);
  drawn_ = terminal_;
}

void Progress::Clear() {
  if (drawn_) fmt::print(stderr, "\r\033[K");
  drawn_ = false;
}

}  // namespace tensorcache::cli
