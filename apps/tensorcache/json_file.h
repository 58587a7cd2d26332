// --json FILE: checked before the work starts, written in one piece after it.
#pragma once

#include <string>

#include "tensorcache/status.h"

namespace tensorcache::cli {

// Fails if `path` cannot become a file, so that a typing error shows before minutes of work, not after. "" is fine.
Status CheckOutputPath(const std::string& path);

// Replaces a file atomically, writes to a pipe or device; does nothing for "".
Status WriteOutput(const std::string& path, const std::string& text);

}  // namespace tensorcache::cli
