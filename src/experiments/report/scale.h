// Axes: which part of the numbers they show, and where their ticks are.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "experiments/result.h"

namespace tensorcache::experiments::report {

struct Tick {
  double value = 0;
  std::string label;
};

// Maps [low, high] to [0, 1], along the logarithm on a log axis. low < high; both finite, on a log axis positive.
class Scale {
 public:
  // `values` are what must be seen, in any order; there may be none. The axis' own limits win where they make sense.
  // `round`: begin and end at ticks, and begin at zero where that costs little; otherwise leave a little room.
  static Scale Fit(const Axis& axis, std::span<const double> values, bool round);

  double low() const { return low_; }
  double high() const { return high_; }
  bool log() const { return log_; }
  // 0 at low, 1 at high; values beyond are clamped to just outside.
  double At(double value) const;
  bool Contains(double value) const;

 private:
  Scale(bool log, double low, double high) : log_(log), low_(low), high_(high) {}

  bool log_;
  double low_;
  double high_;
};

struct TickRequest {
  double length = 0;              // of the axis
  double font_size = 12;          // of the labels
  bool horizontal = true;         // labels stand side by side, not above each other
  std::vector<double> preferred;  // ticks stand here if there are few and their labels fit
  std::string unit;               // "B", "bytes": labels such as 64 KiB
};

// From low to high, with labels that do not touch.
std::vector<Tick> MakeTicks(const Scale& scale, const TickRequest& request);

}  // namespace tensorcache::experiments::report
