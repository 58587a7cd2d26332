// Tables of experiments on the terminal.
#pragma once

#include <string>

#include "experiments/result.h"

namespace tensorcache::cli {

// Aligned columns; where there is a published figure, it stands in brackets behind ours.
std::string TableText(const experiments::Table& table);

// Title, setup, tables, findings.
std::string ResultText(const experiments::ExperimentResult& result);

}  // namespace tensorcache::cli
