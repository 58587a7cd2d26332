// What the terminal can show.
#pragma once

#include <chrono>
#include <optional>
#include <string>

namespace tensorcache::cli {

// Whether the locale says UTF-8; otherwise tables and charts keep to ASCII.
bool Utf8Terminal();

// Of standard error's terminal; 80 if it does not tell.
size_t TerminalColumns();

// "42 s", "17 min", "2 h 05 min".
std::string Duration(double seconds);

// Columns that UTF-8 text takes, a character each.
size_t TextColumns(const std::string& text);
// `text` padded with blanks on the left to `width` columns, counting a UTF-8 character as one.
std::string PadLeft(const std::string& text, size_t width);

// "[=====>     ] 3/12 D=16 random, 2 s left" on stderr: one line redrawn on a terminal, a line without the bar every ten
// seconds elsewhere. Quiet for work that ends within a second.
class Progress {
 public:
  // `first` of the total were done before; they say nothing about the time left.
  explicit Progress(int total = 1, int first = 0);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // `done` of the total are finished; `what` comes next.
  void Show(int done, const std::string& what);
  // The same for work that has no natural count: "34 % ...", `part` from 0 to 1. What the first call tells was done before.
  void ShowPart(double part, const std::string& what);
  // Takes the line away, so that other output can be printed.
  void Clear();

 private:
  using Clock = std::chrono::steady_clock;
  // `new_part` of what was left at the start is done, `part` of all.
  void Draw(double new_part, double part, const std::string& count, const std::string& what);

  int total_;
  int first_;
  std::optional<double> first_part_;
  bool terminal_;
  bool drawn_ = false;
  Clock::time_point start_;
  Clock::time_point last_;
};

}  // namespace tensorcache::cli
