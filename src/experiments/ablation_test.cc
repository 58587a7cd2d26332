// The plan of the ablation: every run is the design but for the keys that its row names.
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "core/config.h"
#include "experiments/experiments.h"

namespace tensorcache::experiments {
namespace {

// "write.rule=outer": what differs below cache.tensor_cache; of all other keys the whole path.
std::set<std::string> Differences(const train::TrainConfig& design, const train::TrainConfig& other) {
  const std::string memory = "cache.tensor_cache.";
  const std::vector<ConfigKey> usual = ConfigKeys(design), keys = ConfigKeys(other);
  std::set<std::string> differences;
  for (size_t i = 0; i < keys.size(); ++i) {
    if (keys[i].value == usual[i].value) continue;
    const std::string& path = keys[i].path;
    std::string value = keys[i].value;
    std::erase(value, '"');
    differences.insert((path.starts_with(memory) ? path.substr(memory.size()) : path) + "=" + value);
  }
  return differences;
}

const std::vector<std::set<std::string>> kChanges = {
    {},
    {"address.conv=0"},
    {"address.conv_previous=0.0"},
    {"address.conv=0", "address.shift=true"},
    {"address.by=rope"},
    {"address.normalize_queries=false", "address.normalize_keys=false"},
    {"write.rule=outer"},
    {"write.when=evict"},
    {"write.decay=per_token"},
    {"write.strength=per_head"},
    {"write.first_half_life=0.0", "write.last_half_life=0.0"},
    {"write.strength=per_head", "write.first_half_life=0.0", "write.last_half_life=0.0", "write.eta_init=0.05"},
    {"read.norm=none"},
    {"read.norm=rms"},
    {"read.zero_output=false"},
    {"read.gate=channel"},
};

TEST(AblationTest, EveryRunDiffersFromTheDesignInWhatItsRowNames) {
  const auto jobs = PlanAblation({});
  ASSERT_TRUE(jobs.ok()) << jobs.status().message();
  ASSERT_EQ(jobs->size(), 2 * kChanges.size());
  for (const size_t first : {size_t{0}, kChanges.size()}) {  // recall, then mqar
    const TrainJob& design = (*jobs)[first];
    std::set<std::string> names;
    for (size_t i = 0; i < kChanges.size(); ++i) {
      const TrainJob& job = (*jobs)[first + i];
      EXPECT_EQ(Differences(design.config, job.config), kChanges[i]) << job.name;
      EXPECT_EQ(job.may_diverge, i > 0) << job.name;
      EXPECT_TRUE(names.insert(job.name).second) << job.name;
      EXPECT_EQ(job.from == nullptr, first == 0) << job.name;
      // All start from the same model of near pairs.
      if (job.from == nullptr) continue;
      EXPECT_TRUE(Differences(design.from->config, job.from->config).empty()) << job.name;
    }
  }
}

TEST(AblationTest, TheDesignIsTheRunOfTheOtherExperiments) {
  for (const Budget budget : {Budget::kQuick, Budget::kFull}) {
    const ExperimentOptions options{.budget = budget};
    const auto jobs = PlanAblation(options), ood = PlanOod(options), mqar = PlanMqar(options);
    ASSERT_TRUE(jobs.ok() && ood.ok() && mqar.ok());
    const auto is_in = [](const std::vector<TrainJob>& plan, const TrainJob& job) {
      size_t found = 0;
      for (const TrainJob& other : plan) {
        found += Differences(other.config, job.config).empty() && other.name == job.name && !other.may_diverge;
      }
      return found;
    };
    EXPECT_EQ(is_in(*ood, (*jobs)[0]), 1u) << (*jobs)[0].name;
    const TrainJob& pairs = (*jobs)[jobs->size() / 2];
    EXPECT_EQ(is_in(*mqar, pairs), 1u) << pairs.name;
  }
}

TEST(AblationTest, TheDesignIsAsTheConfigHasIt) {
  const auto jobs = PlanAblation({});
  ASSERT_TRUE(jobs.ok());
  TensorCacheConfig design;
  design.Apply(MemoryDesign::kAssociative);
  for (const size_t first : {size_t{0}, kChanges.size()}) {
    train::TrainConfig config = (*jobs)[first].config;
    config.model.cache.tensor_cache = design;
    EXPECT_TRUE(Differences((*jobs)[first].config, config).empty());
  }
}

TEST(AblationTest, AUserMayNotChangeWhatTheRunsDifferIn) {
  const auto jobs = PlanAblation({.changes = {"cache.tensor_cache.write.rule=delta"}});
  EXPECT_EQ(jobs.status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace tensorcache::experiments
