// Results as one page that needs nothing else: no network, no script, no font.
#pragma once

#include <string>
#include <vector>

#include "experiments/result.h"

namespace tensorcache::experiments::report {

// The results are valid (ValidateResult) and of different experiments. Their order does not matter: the page begins with
// the headline figures, then has a section for each experiment in the paper's order, unknown ones last by name. The
// same results give the same bytes.
std::string PageHtml(std::vector<ExperimentResult> results,
                     const std::string& title = "The paper’s experiments, repeated");

// The file that `--svg` writes a figure to: "recall-accuracy.svg".
std::string FigureFileName(const ExperimentResult& result, const Figure& figure);

}  // namespace tensorcache::experiments::report
