#include "experiments/learned_table.h"

namespace tensorcache::experiments {

Table LearnedTable(const std::string& id, const std::string& title, const std::vector<TrainedRun>& runs) {
  Table table{.id = id,
              .title = title,
              .note = "Means over a layer's heads; the deviation is over seeds.",
              .row_title = "Layer",
              .columns = {{.title = "gate σ(g)", .digits = 3},
                          {.title = "decay λ", .digits = 4},
                          {.title = "write rate η", .digits = 4}}};
  const size_t layers = runs.empty() ? 0 : runs[0].layers.size();
  for (size_t layer = 0; layer < layers; ++layer) {
    std::vector<double> gate, lambda, eta;
    for (const TrainedRun& run : runs) {
      gate.push_back(run.layers[layer].gate);
      lambda.push_back(run.layers[layer].lambda);
      eta.push_back(run.layers[layer].eta);
    }
    table.rows.push_back({.label = std::to_string(runs[0].layers[layer].layer),
                          .cells = {Measured(gate), Measured(lambda), Measured(eta)}});
  }
  return table;
}

}  // namespace tensorcache::experiments
