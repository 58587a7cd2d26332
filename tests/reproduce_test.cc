// tensorcache reproduce and demo, end to end: models are trained, if hardly, and measured.
#include <gtest/gtest.h>
#include <signal.h>

#include <nlohmann/json.hpp>

#include "experiments/result.h"
#include "tests/run_testing.h"

namespace tensorcache {
namespace {

class ReproduceTest : public RunTest {
 protected:
  // Training of a second: enough to have a model.
  Args Small(const std::string& name, const std::vector<std::string>& more = {}) const {
    Args args = {"reproduce", name, "--quick", "--out", Out(), "--set", "train.steps=3", "--set", "train.batch_size=2"};
    args.insert(args.end(), more.begin(), more.end());
    return args;
  }
  std::string Out() const { return temp_.Path("out"); }
  experiments::ExperimentResult Read(const std::string& name) const {
    auto result = experiments::ReadResult(Out() + "/" + name + ".json");
    EXPECT_TRUE(result.ok()) << result.status().message();
    return result.ok() ? *result : experiments::ExperimentResult{};
  }
  static size_t CountFolders(const std::string& path) {
    size_t count = 0;
    for (const auto& entry : fs::directory_iterator(path)) count += entry.is_directory();
    return count;
  }
};

TEST_F(ReproduceTest, RulesTrainsThreeModelsAndWritesTheTable) {
  const Outcome outcome = Run(Small("rules"));
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("3 models to train"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("quick"), std::string::npos);
  EXPECT_NE(outcome.out.find("[0.979+-0.029]"), std::string::npos) << outcome.out;  // the paper's wedge
  const auto result = Read("rules");
  EXPECT_EQ(result.made.budget, "quick");
  ASSERT_EQ(result.tables.size(), 1u);
  ASSERT_EQ(result.tables[0].rows.size(), 3u);
  EXPECT_EQ(result.runs.size(), 3u);
  EXPECT_EQ(result.runs[0].steps, 3);
  EXPECT_EQ(CountFolders(Out() + "/runs"), 3u);

  EXPECT_EQ(result.made.seeds, std::vector<uint64_t>{1337});
  EXPECT_NE(result.setup.find("Changed in every run: train.steps=3, train.batch_size=2"), std::string::npos);
  EXPECT_NE(result.setup.find("3 steps of 2 sequences"), std::string::npos) << result.setup;
  EXPECT_EQ(result.made.changes.size(), 2u);

  // The outer rule's run is that of Tensor Cache in the OOD table: three more are enough.
  const Outcome ood = Run(Small("ood"));
  ASSERT_EQ(ood.status, 0) << ood.err;
  EXPECT_NE(ood.out.find("3 models to train"), std::string::npos) << ood.out;
  EXPECT_EQ(CountFolders(Out() + "/runs"), 6u);
  EXPECT_EQ(Read("ood").tables.size(), 3u);
}

TEST_F(ReproduceTest, ExtensionsHaveTheirDefaultBesideThem) {
  const Outcome outcome = Run(Small("layers"));
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const auto result = Read("layers");
  ASSERT_EQ(result.tables[0].rows.size(), 4u);
  EXPECT_EQ(result.tables[0].rows[0].label, "default");
  // Without memories, and with one: what a layer's memory takes.
  EXPECT_LT(*result.tables[0].rows[3].cells.back().value, *result.tables[0].rows[2].cells.back().value);
}

TEST_F(ReproduceTest, MqarSetsAccuracyAgainstState) {
  const Outcome outcome = Run(Small("mqar"));
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("4 models to train"), std::string::npos) << outcome.out;
  const auto result = Read("mqar");
  ASSERT_EQ(result.tables.size(), 3u);
  const auto& state = result.tables[1];
  ASSERT_EQ(state.rows.size(), 3u);
  // Full KV keeps two vectors of 64 floats for each token in two layers, which is a kilobyte; the others have one size.
  ASSERT_EQ(state.columns.size(), 3u);
  EXPECT_EQ(state.rows[0].label, "Full KV");
  EXPECT_EQ(*state.rows[0].cells[0].value, 64);
  EXPECT_EQ(*state.rows[0].cells[2].value, 1024);
  for (const size_t row : {1, 2}) EXPECT_EQ(*state.rows[row].cells[0].value, *state.rows[row].cells[2].value);
  ASSERT_EQ(result.figures.size(), 3u);
  EXPECT_TRUE(result.figures[0].x.log);
  ASSERT_EQ(result.figures[0].series.size(), 3u);
  EXPECT_EQ(result.figures[0].series[0].points[0].x, 256);  // KiB of 256 tokens
  ExpectMistake(Small("mqar", {"--set", "cache.window=8"}), "differ in cache.window");
}

TEST_F(ReproduceTest, AblationHasTheDesignAndWhatIsLeftOfItWithoutAPart) {
  const Outcome outcome = Run(Small("ablation"));
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("9 models to train"), std::string::npos)
      << outcome.out;  // four of each task, and near pairs
  const auto result = Read("ablation");
  ASSERT_EQ(result.tables.size(), 2u);
  EXPECT_EQ(result.runs.size(), 9u);
  const auto& accuracy = result.tables[0];
  ASSERT_EQ(accuracy.rows.size(), 4u);
  EXPECT_EQ(accuracy.rows[0].label, "the design");
  for (const auto& row : accuracy.rows) {
    // Whatever diverged says so, and is no reason to stop.
    for (const auto& cell : row.cells) EXPECT_TRUE(cell.value.has_value() != cell.text.starts_with("diverged"));
  }
  for (const auto& cell : accuracy.rows[0].cells) EXPECT_TRUE(cell.value.has_value());
  // Keys that are not of unit length make the delta rule grow: those of a model with large parameters at once.
  EXPECT_EQ(accuracy.rows[2].label, "no unit queries and keys");
  EXPECT_EQ(accuracy.rows[2].cells.back().text, "diverged at step 1");
  EXPECT_EQ(result.findings.size(), 1 + accuracy.rows.size());
  // The design is the run of ood: the three others are enough.
  const Outcome ood = Run(Small("ood"));
  EXPECT_NE(ood.out.find("3 models to train"), std::string::npos) << ood.out;
}

TEST_F(ReproduceTest, AStoppedReproductionGoesOn) {
  // With unit keys: of so few sequences a step, delta writes may diverge without.
  Args args = Small("rules", {"--set", "cache.tensor_cache.address.normalize_keys=true"});
  args[6] = "train.steps=120";  // long enough to be stopped in the middle
  {
    Process process(args, temp_.path());
    const std::string runs = Out() + "/runs";
    ASSERT_TRUE(WaitUntil([&] {
      if (!fs::exists(runs)) return false;
      for (const auto& entry : fs::directory_iterator(runs)) {
        if (fs::exists(entry.path() / "metrics.jsonl") && fs::file_size(entry.path() / "metrics.jsonl") > 0)
          return true;
      }
      return false;
    }));
    process.Signal(SIGINT);
    EXPECT_EQ(process.Wait(), 1);
    EXPECT_NE(process.Err().find("stopped; what was trained is kept"), std::string::npos) << process.Err();
  }
  size_t saved = 0;
  for (const auto& entry : fs::directory_iterator(Out() + "/runs")) {
    saved += fs::exists(entry.path() / "train_state.safetensors");
    EXPECT_FALSE(fs::exists(entry.path() / "done.json"));
  }
  EXPECT_GE(saved, 1u);
  const Outcome rest = Run(args);
  ASSERT_EQ(rest.status, 0) << rest.err;
  EXPECT_EQ(Read("rules").runs[0].steps, 120);
}

TEST_F(ReproduceTest, TextThatIsNotThereIsNamed) {
  ExpectMistake(Small("shakespeare", {"--data", temp_.Path("nowhere")}), "nowhere/shakespeare/input.txt is not there");
  ExpectMistake(Small("novels", {"--data", temp_.Path("nowhere")}), "nowhere/novels/train is not there");
}

TEST_F(ReproduceTest, NovelsComparesMethodsOnTheSamePlaces) {
  std::string text;
  for (int i = 0; i < 6000; ++i) text += "the cat sat on the mat " + std::to_string(i * i) + " times, said the dog\n";
  for (const char* part : {"train", "valid"}) {
    fs::create_directories(temp_.Path("data/novels/" + std::string(part)));
    temp_.Put("data/novels/" + std::string(part) + "/a.txt", text);
  }
  const Outcome outcome = Run(Small("novels", {"--data", temp_.Path("data")}));
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const auto result = Read("novels");
  EXPECT_EQ(result.tables[0].rows.size(), 4u);  // contexts
  EXPECT_EQ(result.tables[0].columns.size(), 7u);
  EXPECT_EQ(result.tables[1].id, "paired");
  for (const auto& row : result.tables[1].rows) {
    for (const auto& cell : row.cells) EXPECT_TRUE(cell.std.has_value());
  }
  EXPECT_EQ(result.tables[1].columns.size(), 4u);
  EXPECT_EQ(result.tables[2].id, "variants");
  ASSERT_EQ(result.tables[2].rows.size(), 3u);
  EXPECT_EQ(result.tables[2].rows[1].label, "Tensor Cache, carried state, Window KV, carried state");
  EXPECT_EQ(result.figures[0].series.size(), 7u);

  // Nothing is left to do, from wherever the same texts are read; others are others.
  fs::rename(temp_.Path("data"), temp_.Path("moved"));
  const Outcome same = Run(Small("novels", {"--data", temp_.Path("moved")}));
  ASSERT_EQ(same.status, 0) << same.err;
  EXPECT_EQ(same.out.find("models to train"), std::string::npos) << same.out;
  // --data may be the novels' folder itself.
  const Outcome inner = Run(Small("novels", {"--data", temp_.Path("moved/novels")}));
  ASSERT_EQ(inner.status, 0) << inner.err;
  EXPECT_EQ(inner.out.find("models to train"), std::string::npos) << inner.out;
  fs::create_directories(temp_.Path("other"));
  temp_.Put("other/a.txt", text + "The end.\n");
  {
    Process changed(
        Small("novels", {"--data", temp_.Path("moved"), "--again", "--set", "data.text.path=" + temp_.Path("other")}),
        temp_.path());
    EXPECT_TRUE(WaitUntil([&] { return changed.Out().find("7 models to train") != std::string::npos; }))
        << changed.Err();
    changed.Signal(SIGINT);
    changed.Wait();
  }
  temp_.Put("moved/novels/valid/b.txt", "One more novel.\n");
  ExpectMistake(Small("novels", {"--data", temp_.Path("moved")}), "was made of other texts");
  Process other(Small("novels", {"--data", temp_.Path("moved"), "--again"}), temp_.path());
  EXPECT_TRUE(WaitUntil([&] { return other.Out().find("7 models to train") != std::string::npos; })) << other.Err();
}

TEST_F(ReproduceTest, WhatTellsRunsApartIsNotChanged) {
  ExpectMistake(Small("rules", {"--set", "train.seed=3"}), "give seeds by --seeds");
  ExpectMistake(Small("rules", {"--set", R"(train={"seed": 3})"}), "give seeds by --seeds");
  ExpectMistake(Small("recall", {"--set", R"(cache={"method": "window"})"}),
                "--set cache: the runs of this experiment differ in cache.method");
  ExpectMistake(Small("recall", {"--set", "cache.method=window"}),
                "the runs of this experiment differ in cache.method");
  ExpectMistake(Small("rules", {"--set", "cache.tensor_cache.rule=delta"}), "differ in cache.tensor_cache.write.rule");
  ExpectMistake(Small("rules", {"--seeds", "1,2,1"}), "--seeds has 1 twice");
}

TEST_F(ReproduceTest, ABadValueIsNamedBeforeAnythingStarts) {
  ExpectMistake(Small("rules", {"--set", "train.steps=-3"}), "steps is -3");
  EXPECT_EQ(CountFolders(Out() + "/runs"), 0u);
}

TEST_F(ReproduceTest, AnUnknownKeyIsNamed) {
  ExpectMistake(Small("rules", {"--set", "train.stepps=3"}), "did you mean");
}

TEST_F(ReproduceTest, DemoTrainsStreamsAsksAndDrawsAPage) {
  const Outcome outcome = Run({"demo", "--out", Out(), "--steps", "2", "--tokens", "3000"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  for (const char* part :
       {"Tensor Cache, associative    2 steps", "Right answers", "3,000", "QUERY key7", "report.html"}) {
    EXPECT_NE(outcome.out.find(part), std::string::npos) << part << "\n" << outcome.out;
  }
  for (const char c : outcome.out) ASSERT_LT(static_cast<unsigned char>(c), 0x80);  // the locale is C
  EXPECT_NE(ReadAll(Out() + "/report.html").find("<svg"), std::string::npos);
  EXPECT_EQ(Read("demo").figures.size(), 2u);
}

}  // namespace
}  // namespace tensorcache
