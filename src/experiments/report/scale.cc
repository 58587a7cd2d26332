#include "experiments/report/scale.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "experiments/report/markup.h"
#include "experiments/report/number_text.h"

namespace tensorcache::experiments::report {
namespace {

constexpr double kRoom = 0.035;        // of the axis, left free at either end
constexpr double kLargest = 1e300;     // sums and differences of limits stay finite
constexpr double kSmallest = 1e-305;   // of a log axis
constexpr double kTiny = 1e-200;       // as good as zero on a linear one
constexpr size_t kMostPreferred = 12;  // ticks that stand at the data

// 1, 2, 2.5 or 5 times a power of ten, at least `rough`.
double NiceStep(double rough) {
  const double power = std::pow(10, std::floor(std::log10(rough)));
  for (const double factor : {1.0, 2.0, 2.5, 5.0}) {
    if (factor * power >= rough * (1 - 1e-9)) return factor * power;
  }
  return 10 * power;
}

bool IsByteUnit(const std::string& unit) { return unit == "B" || unit == "bytes"; }

bool IsPowerOfTwo(double value) {
  int exponent = 0;
  return value > 0 && std::frexp(value, &exponent) == 0.5;
}

// 256, 4K, 1M: K is 1024 among powers of two.
std::string BinaryLabel(double value) {
  constexpr const char* kUnits[] = {"", "K", "M", "G", "T", "P"};
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  return ShortText(value) + kUnits[unit];
}

std::string DecimalLabel(double value) {
  constexpr const char* kUnits[] = {"", "K", "M", "G", "T"};
  if (std::abs(value) < 1e4) return ShortText(value);
  size_t unit = 0;
  while (std::abs(value) >= 1e3 && unit + 1 < std::size(kUnits)) {
    value /= 1e3;
    ++unit;
  }
  return ShortText(value) + kUnits[unit];
}

std::string ByteLabel(double value) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  size_t unit = 0;
  while (std::abs(value) >= 1024 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  return ShortText(value) + " " + kUnits[unit];
}

// What the labels of one axis have in common: its unit, and whether most of its values are powers of two.
struct LabelStyle {
  bool bytes = false;
  bool binary = false;

  std::string operator()(double value) const {
    if (bytes) return ByteLabel(value);
    return binary && IsPowerOfTwo(value) ? BinaryLabel(value) : DecimalLabel(value);
  }
};

bool Fit(const Scale& scale, const std::vector<Tick>& ticks, const TickRequest& request) {
  for (size_t i = 1; i < ticks.size(); ++i) {
    const double distance = (scale.At(ticks[i].value) - scale.At(ticks[i - 1].value)) * request.length;
    const double width =
        (TextWidth(ticks[i].label, request.font_size) + TextWidth(ticks[i - 1].label, request.font_size)) / 2 +
        0.7 * request.font_size;
    if (distance < (request.horizontal ? width : 2.4 * request.font_size)) return false;
  }
  return true;
}

std::vector<Tick> LinearTicks(const Scale& scale, double step, bool bytes) {
  std::vector<Tick> ticks;
  int64_t digits = 0;
  while (digits < 9 && std::abs(std::round(step * std::pow(10, digits)) / std::pow(10, digits) - step) > step * 1e-6) {
    ++digits;
  }
  const double first = std::ceil(scale.low() / step - 1e-6), last = std::floor(scale.high() / step + 1e-6);
  const bool large = std::max(std::abs(first), std::abs(last)) * step >= 1e4;
  for (double i = first; i <= last && ticks.size() < 1000; ++i) {
    const double value = i == 0 ? 0 : std::clamp(i * step, scale.low(), scale.high());
    if (!scale.Contains(value)) continue;  // zero, on a log axis
    const bool tiny = step < 1e-9;
    ticks.push_back({value, bytes ? ByteLabel(value) : large || tiny ? DecimalLabel(value) : FixedText(value, digits)});
  }
  return ticks;
}

std::vector<Tick> FittingLinearTicks(const Scale& scale, const TickRequest& request, bool bytes) {
  const double most = std::max(1.0, request.length / (request.horizontal ? 70.0 : 44.0));
  double step = NiceStep((scale.high() / 2 - scale.low() / 2) / most * 2);
  while (true) {
    std::vector<Tick> ticks = LinearTicks(scale, step, bytes);
    if (ticks.size() <= 2 || Fit(scale, ticks, request)) return ticks;
    step = NiceStep(step * 1.5);
  }
}

// Every `stride`-th power of `base` on the axis.
std::vector<Tick> PowerTicks(const Scale& scale, double base, int stride, const LabelStyle& label) {
  std::vector<Tick> ticks;
  const double first = std::ceil(std::log(scale.low()) / std::log(base) - 1e-9);
  const double last = std::floor(std::log(scale.high()) / std::log(base) + 1e-9);
  for (double exponent = first; exponent <= last; exponent += stride) {
    const double value = std::pow(base, exponent);
    ticks.push_back({value, label(value)});
  }
  return ticks;
}

// 1, 2, 5, 10, 20, ... on the axis.
std::vector<Tick> OneTwoFiveTicks(const Scale& scale, const LabelStyle& label) {
  std::vector<Tick> ticks;
  for (double power = std::floor(std::log10(scale.low())); power <= std::ceil(std::log10(scale.high())); ++power) {
    for (const double factor : {1.0, 2.0, 5.0}) {
      const double value = factor * std::pow(10, power);
      if (scale.Contains(value)) ticks.push_back({value, label(value)});
    }
  }
  return ticks;
}

std::vector<Tick> LogTicks(const Scale& scale, const TickRequest& request, const LabelStyle& label) {
  const bool powers_of_two = label.binary || label.bytes;
  if (!powers_of_two && scale.high() / scale.low() < 1e3) {
    std::vector<Tick> ticks = OneTwoFiveTicks(scale, label);
    if (ticks.size() >= 3 && Fit(scale, ticks, request)) return ticks;
  }
  for (int stride = 1; stride < 2000; ++stride) {
    std::vector<Tick> ticks = PowerTicks(scale, powers_of_two ? 2 : 10, stride, label);
    if (ticks.size() < 2) break;
    if (Fit(scale, ticks, request)) return ticks;
  }
  return FittingLinearTicks(scale, request, label.bytes);  // less than one power on the whole axis
}

struct Limits {
  double low = 0;
  double high = 0;
};

// A range that is a single value becomes one around it.
Limits Widened(Limits limits, bool log) {
  const double size = std::max(std::abs(limits.low), std::abs(limits.high));
  if (limits.high - limits.low > std::max(1e-9 * size, log ? 0 : kTiny)) return limits;
  if (log) return {limits.low / 2, limits.high * 2};  // still far from overflow
  const double half = size > kTiny ? 0.1 * size : 0.5;
  return {limits.low - half, limits.high + half};
}

// Along `round` axes curves may run along the edge, so they get more room.
Limits WithRoom(Limits limits, bool log, bool round) {
  const double share = round ? 2 * kRoom : kRoom;
  if (log) {
    const double room = std::exp(share * (std::log(limits.high) - std::log(limits.low)));
    return {std::max(limits.low / room, kSmallest), std::min(limits.high * room, 1 / kSmallest)};
  }
  const double room = share * (limits.high - limits.low);
  return {limits.low - room, limits.high + room};
}

Limits Rounded(Limits limits) {
  if (limits.low > 0 && limits.low < 0.4 * limits.high) limits.low = 0;
  const double step = NiceStep((limits.high - limits.low) / 6);
  return {std::floor(limits.low / step + 1e-6) * step, std::ceil(limits.high / step - 1e-6) * step};
}

}  // namespace

Scale Scale::Fit(const Axis& axis, std::span<const double> values, bool round) {
  const bool log = axis.log;
  Limits data = log ? Limits{1, 10} : Limits{0, 1};
  bool first = true;
  for (double value : values) {
    if (!std::isfinite(value) || (log && value <= 0)) continue;
    value = log ? std::clamp(value, 1 / kLargest, kLargest) : std::clamp(value, -kLargest, kLargest);
    data = first ? Limits{value, value} : Limits{std::min(data.low, value), std::max(data.high, value)};
    first = false;
  }
  Limits limits = Widened(data, log);
  limits = round && !log ? Rounded(limits) : WithRoom(limits, log, round);

  const auto usable = [&](const std::optional<double>& limit) {
    return limit && std::isfinite(*limit) && std::abs(*limit) <= kLargest && (!log || *limit >= kSmallest);
  };
  Limits asked = limits;
  if (usable(axis.min)) asked.low = *axis.min;
  if (usable(axis.max)) asked.high = *axis.max;
  if (asked.low < asked.high && asked.high - asked.low > 1e-12 * std::max(std::abs(asked.low), std::abs(asked.high))) {
    limits = asked;
  }
  return {log, limits.low, limits.high};
}

double Scale::At(double value) const {
  constexpr double kOutside = 0.2;
  double at = 0;
  if (log_) {
    if (value <= 0) return -kOutside;
    at = (std::log(value) - std::log(low_)) / (std::log(high_) - std::log(low_));
  } else {
    at = (value / 2 - low_ / 2) / (high_ / 2 - low_ / 2);
  }
  return std::clamp(at, -kOutside, 1 + kOutside);
}

bool Scale::Contains(double value) const {
  const double at = At(value);
  return at >= -1e-9 && at <= 1 + 1e-9;
}

std::vector<Tick> MakeTicks(const Scale& scale, const TickRequest& request) {
  std::vector<double> preferred = request.preferred;
  std::erase_if(preferred, [&](double value) { return !scale.Contains(value); });
  std::ranges::sort(preferred);
  preferred.erase(std::ranges::unique(preferred).begin(), preferred.end());
  // Powers of two, and perhaps a million at their end.
  const bool binary = scale.log() && !preferred.empty() &&
                      3 * std::ranges::count_if(preferred, IsPowerOfTwo) >= 2 * std::ssize(preferred);
  const bool large = !preferred.empty() && preferred.back() >= 4096;
  const LabelStyle label{.bytes = IsByteUnit(request.unit), .binary = binary && large};
  if (preferred.size() >= 2 && preferred.size() <= kMostPreferred) {
    std::vector<Tick> ticks;
    for (const double value : preferred) ticks.push_back({value, label(value)});
    if (Fit(scale, ticks, request)) return ticks;
  }
  if (!scale.log()) return FittingLinearTicks(scale, request, label.bytes);
  return LogTicks(scale, request, {.bytes = label.bytes, .binary = binary});
}

}  // namespace tensorcache::experiments::report
