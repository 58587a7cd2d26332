// The results in docs/results: one of every experiment but for those listed here, of the whole budget, by a program
// of the history.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <string>
#include <string_view>

#include "experiments/experiment.h"
#include "experiments/result.h"

namespace tensorcache::experiments {
namespace {

// The full budget of these has not been run yet.
constexpr std::array<std::string_view, 4> kToBeMade = {"pairs", "mqar", "ablation", "needle"};

TEST(DocumentedResultsTest, EveryExperimentHasOneOfItsFullBudget) {
  for (const Experiment& experiment : Experiments()) {
    const std::string name(experiment.name), path = TENSORCACHE_DOCUMENTED_RESULTS "/" + name + ".json";
    if (std::ranges::find(kToBeMade, experiment.name) != kToBeMade.end()) {
      EXPECT_FALSE(std::filesystem::exists(path)) << name << " has been made: take it out of the list";
      continue;
    }
    const auto result = ReadResult(path);
    ASSERT_TRUE(result.ok()) << result.status().message();
    EXPECT_EQ(result.value().experiment, name);
    EXPECT_FALSE(result.value().tables.empty()) << name;
    EXPECT_FALSE(result.value().findings.empty()) << name;
    const Provenance& made = result.value().made;
    EXPECT_EQ(made.budget, "full") << name;
    EXPECT_TRUE(made.changes.empty()) << name << " was made with other settings";
    EXPECT_FALSE(made.commit.empty()) << name;
    EXPECT_EQ(made.commit.find("dirty"), std::string::npos) << name << " is by a program of no commit: " << made.commit;
    EXPECT_FALSE(made.cpu.empty()) << name;
    EXPECT_FALSE(made.command.empty()) << name;
  }
}

}  // namespace
}  // namespace tensorcache::experiments
