// Options of one command, parsed by CLI11 with this program's error style.
#pragma once

#include <CLI/CLI.hpp>

#include "apps/tensorcache/command.h"
#include "tensorcache/status.h"

namespace tensorcache::cli {

// Parses `line.args` into the variables bound to `app`. False: help was asked for and printed, there is nothing to do.
// An unknown option is an error that names the nearest known one.
Result<bool> ParseOptions(CLI::App& app, const CommandLine& line);

}  // namespace tensorcache::cli
