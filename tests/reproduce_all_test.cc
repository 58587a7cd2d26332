// tensorcache reproduce all, end to end: every experiment makes its tables of models that have hardly been trained.
#include <gtest/gtest.h>

#include "experiments/experiment.h"
#include "tests/run_testing.h"

namespace tensorcache {
namespace {

class ReproduceAllTest : public RunTest, public ::testing::WithParamInterface<std::string> {};

TEST_P(ReproduceAllTest, MakesItsTables) {
  const std::string& name = GetParam();
  const std::string out = temp_.Path("out");
  const std::string data = TENSORCACHE_SHARED_DATA;
  if ((name == "shakespeare" || name == "novels") && !fs::exists(data)) GTEST_SKIP() << data << " is not there";
  Args args = {"reproduce", name, "--quick", "--out", out, "--data", data};
  const auto experiment = experiments::FindExperiment(name);
  ASSERT_TRUE(experiment.ok());
  if ((*experiment)->plan != nullptr) {
    args.insert(args.end(), {"--set", "train.steps=2", "--set", "train.batch_size=2"});
  }
  const Outcome outcome = Run(args);
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const auto result = experiments::ReadResult(out + "/" + name + ".json");
  ASSERT_TRUE(result.ok()) << result.status().message();
  EXPECT_EQ(result->experiment, name);
  EXPECT_FALSE(result->tables.empty());
  EXPECT_FALSE(result->findings.empty());
  for (const auto& table : result->tables) EXPECT_FALSE(table.rows.empty()) << table.id;
}

std::vector<std::string> Names() {
  std::vector<std::string> names;
  for (const experiments::Experiment& experiment : experiments::Experiments()) names.emplace_back(experiment.name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(Every, ReproduceAllTest, ::testing::ValuesIn(Names()),
                         [](const auto& param_info) { return param_info.param; });

}  // namespace
}  // namespace tensorcache
