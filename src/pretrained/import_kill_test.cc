// Imports and exports that are killed, or that write to one folder at once: what is there afterwards is one whole model.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>
#include <thread>

#include "core/file.h"
#include "core/rng.h"
#include "pretrained/export.h"
#include "pretrained/import.h"
#include "pretrained/pretrained_testing.h"
#include "testing/child.h"
#include "testing/temp_folder.h"

namespace tensorcache::pretrained {
namespace {

namespace fs = std::filesystem;
using Files = std::map<std::string, std::string>;
using testing::Child;

constexpr int kKills = 120;

// Those that a model has; a killed program may leave others.
Files FilesOf(const std::string& folder) {
  Files files;
  for (const char* name : {"config.json", "model.safetensors", "tokenizer.json", "generation_config.json"}) {
    const fs::path path = fs::path(folder) / name;
    std::ostringstream text;
    text << std::ifstream(path, std::ios::binary).rdbuf();
    if (fs::exists(path)) files[name] = text.str();
  }
  return files;
}

class ImportKillTest : public ::testing::Test {
 protected:
  void SetUp() override {
    MakeLlama({.layers = 2}).Write(temp_.Path("from0"));
    MakeLlama({.vocab = 23, .layers = 3}).Write(temp_.Path("from1"));
    for (int i = 0; i < 2; ++i) {
      temp_.Put("from" + std::to_string(i) + "/tokenizer.json", "{\"number\": " + std::to_string(i) + "}");
      ASSERT_EQ(Import(i, temp_.Path("whole" + std::to_string(i))), 0);
      models_[i] = FilesOf(temp_.Path("whole" + std::to_string(i)));
    }
    temp_.Put("from1/generation_config.json", "{}");  // not every model has one
    ASSERT_EQ(Import(1, temp_.Path("whole1")), 0);
    models_[1] = FilesOf(temp_.Path("whole1"));
    ASSERT_EQ(models_[1].size(), 4u);
  }

  int Import(int model, const std::string& out) const {
    const auto report = ImportModel({.from = temp_.Path("from" + std::to_string(model)), .out = out, .force = true});
    return report.ok() ? 0 : report.status().code() == StatusCode::kInvalidArgument ? 2 : 1;
  }
  // 0 or 1, or -1 for anything else.
  int ModelIn(const std::string& folder) const {
    const Files files = FilesOf(folder);
    return files == models_[0] ? 0 : files == models_[1] ? 1 : -1;
  }
  // Kills `work` at moments from its begin to its end; `check` is called after each.
  static void KillOften(const std::function<int()>& work, int times, const std::function<void(bool ended)>& check) {
    const auto start = std::chrono::steady_clock::now();
    ASSERT_EQ(testing::InChild(work), 0);
    std::chrono::duration<double> longest = std::chrono::steady_clock::now() - start;
    Rng rng(7);
    for (int i = 0; i < times; ++i) {
      Child child(work);
      std::this_thread::sleep_for(longest * rng.UniformDouble());
      child.Kill();
      const bool ended = child.Wait() == 0;
      longest *= ended ? 0.8 : 1.1;  // however busy the machine is, some end and some do not
      check(ended);
    }
  }
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(temp_.path())) names.push_back(entry.path().filename().string());
    std::ranges::sort(names);
    return names;
  }

  const testing::TempFolder temp_;
  const std::string out_ = temp_.Path("out");
  Files models_[2];
};

TEST_F(ImportKillTest, TwoAtOnceLeaveOneModel) {
  int mixtures = 0, refusals = 0;
  for (int i = 0; i < 40; ++i) {
    int gate[2];
    ASSERT_EQ(pipe(gate), 0);
    const auto work = [&](int model) {
      return [&, model] {
        char byte;
        close(gate[1]);
        (void)!read(gate[0], &byte, 1);  // until both are there
        return Import(model, out_);
      };
    };
    Child first(work(0)), second(work(1));
    close(gate[0]);
    close(gate[1]);
    const int statuses[] = {first.Wait(), second.Wait()};
    for (const int status : statuses) refusals += status == 2 ? 1 : 0;
    EXPECT_TRUE(std::ranges::count(statuses, 0) >= 1) << statuses[0] << " " << statuses[1];
    mixtures += ModelIn(out_) < 0 ? 1 : 0;
  }
  EXPECT_EQ(mixtures, 0) << "of 40 pairs";
  RecordProperty("refusals", refusals);
}

TEST_F(ImportKillTest, AKillLeavesTheOldModelOrTheNewOne) {
  ASSERT_EQ(Import(0, out_), 0);
  int broken = 0, replaced = 0, model = 0;
  KillOften([&] { return Import(1 - model, out_); }, kKills,
            [&](bool) {
              const int found = ModelIn(out_);
              broken += found < 0 ? 1 : 0;
              replaced += found == 1 - model ? 1 : 0;
              if (found >= 0) {
                model = found;
              } else {
                ASSERT_EQ(Import(model, out_), 0);  // so that each kill is counted once
              }
            });
  EXPECT_EQ(broken, 0) << "of " << kKills << " kills";
  EXPECT_GT(replaced, 0);
  EXPECT_LT(replaced, kKills);
  // What they left goes with the next one that ends.
  ASSERT_EQ(Import(1, out_), 0);
  EXPECT_EQ(Names(), (std::vector<std::string>{"from0", "from1", "out", "whole0", "whole1"}));
  EXPECT_EQ(std::distance(fs::directory_iterator(out_), {}), 4);
}

TEST_F(ImportKillTest, AKillInANewFolderLeavesNoModelOrAWholeOne) {
  KillOften([&] { return Import(0, out_); }, kKills / 3,
            [&](bool ended) {
              if (fs::exists(out_ + "/config.json")) {
                EXPECT_EQ(ModelIn(out_), 0);
              } else {
                EXPECT_FALSE(ended);
              }
              fs::remove_all(out_);
            });
}

TEST_F(ImportKillTest, AKilledExportLeavesTheOldModelOrTheNewOne) {
  const auto exported = [&](int model, const std::string& out) {
    const auto report = ExportModel({.model = temp_.Path("whole" + std::to_string(model)), .out = out, .force = true});
    return report.ok() ? 0 : 1;
  };
  Files files[2];
  for (const int i : {1, 0}) {
    ASSERT_EQ(exported(i, out_), 0);
    files[i] = FilesOf(out_);
  }
  int model = 0, broken = 0;
  KillOften([&] { return exported(1 - model, out_); }, kKills / 3,
            [&](bool) {
              const Files found = FilesOf(out_);
              if (found == files[1 - model]) model = 1 - model;
              if (found == files[model]) return;
              ++broken;
              ASSERT_EQ(exported(model, out_), 0);
            });
  EXPECT_EQ(broken, 0) << "of " << kKills / 3 << " kills";
}

}  // namespace
}  // namespace tensorcache::pretrained
