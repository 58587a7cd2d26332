#include "apps/tensorcache/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string_view>

#include "apps/tensorcache/output.h"

namespace tensorcache::cli {

size_t TerminalColumns() {
  winsize size = {};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

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

size_t TextColumns(const std::string& text) {
  const auto continues = [](char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; };
  return text.size() - static_cast<size_t>(std::ranges::count_if(text, continues));
}

std::string PadLeft(const std::string& text, size_t width) {
  const size_t columns = TextColumns(text);
  return std::string(columns < width ? width - columns : 0, ' ') + text;
}

namespace {

std::string Bar(double part) {
  constexpr int kWidth = 24;
  const int filled = std::clamp(static_cast<int>(kWidth * part), 0, kWidth);
  std::string bar(static_cast<size_t>(kWidth), ' ');
  for (int i = 0; i < filled && i < kWidth; ++i) bar[static_cast<size_t>(i)] = '=';
  if (filled < kWidth) bar[static_cast<size_t>(filled)] = '>';
  return "[" + bar + "] ";
}

}  // namespace

std::string Duration(double seconds) {
  const auto whole = static_cast<int64_t>(std::llround(seconds));
  if (whole < 100) return fmt::format("{} s", whole);
  if (whole < 6000) return fmt::format("{} min", (whole + 30) / 60);
  return fmt::format("{} h {:02} min", whole / 3600, whole % 3600 / 60);
}

Progress::Progress(int total, int first)
    : total_(total), first_(first), terminal_(isatty(STDERR_FILENO) != 0), start_(Clock::now()), last_(start_) {}

Progress::~Progress() { Clear(); }

void Progress::Show(int done, const std::string& what) {
  Draw(static_cast<double>(done - first_) / (total_ - first_), static_cast<double>(done) / total_,
       fmt::format("{}/{}", done, total_), what);
}

void Progress::ShowPart(double part, const std::string& what) {
  if (!first_part_ || part < *first_part_) {  // less: what was not saved is done again
    first_part_ = part;
    start_ = Clock::now();
  }
  Draw((part - *first_part_) / (1 - *first_part_), part, fmt::format("{:.0f} %", 100 * part), what);
}

void Progress::Draw(double new_part, double part, const std::string& count, const std::string& what) {
  const auto now = Clock::now();
  const double elapsed = std::chrono::duration<double>(now - start_).count();
  const double since_last = std::chrono::duration<double>(now - last_).count();
  if (terminal_ ? elapsed < 1 || (drawn_ && since_last < 0.1) : since_last < 10) return;
  last_ = now;
  const std::string left =
      new_part > 0 ? fmt::format(", {} left", Duration(elapsed / new_part * (1 - new_part))) : std::string();
  if (terminal_) {
    // A line that wraps cannot be redrawn: the middle gives way.
    const std::string front = fmt::format("{}{} ", Bar(part), count);
    const size_t room =
        std::max<size_t>(TerminalColumns(), front.size() + left.size() + 2) - front.size() - left.size() - 1;
    Note("\r{}{}{}\033[K", front, what.substr(0, room), left);
  } else {
    Note("{} {}{}\n", count, what, left);
  }
  drawn_ = terminal_;
}

void Progress::Clear() {
  if (drawn_) Note("\r\033[K");
  drawn_ = false;
}

}  // namespace tensorcache::cli
