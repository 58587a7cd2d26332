// A table as HTML: our numbers, the paper's below them, and the difference marked.
#pragma once

#include <map>
#include <string>

#include "experiments/result.h"

namespace tensorcache::experiments::report {

// Ours against the published value. Of two values that differ by no more than their deviations together, neither is
// called better.
enum class Verdict {
  kNone,    // there are no two numbers to compare
  kEqual,   // the same in all digits shown
  kWithin,  // no further apart than the deviations
  kBetter,
  kWorse,
  kOther,  // different, in a column where neither is better
};
Verdict Judge(const Cell& cell, const Column& column);

// Names of curves in the same experiment, and the classes of their colours: rows and columns of that name show it.
using NameClasses = std::map<std::string, std::string>;

std::string TableHtml(const Table& table, const NameClasses& names);

}  // namespace tensorcache::experiments::report
