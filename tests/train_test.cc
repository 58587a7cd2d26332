// tensorcache train, end to end: runs, stops, kills, resumes, bad input, several processes.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <map>
#include <nlohmann/json.hpp>

#include "testing/port.h"
#include "testing/temp_folder.h"
#include "tests/process_testing.h"

namespace tensorcache {
namespace {

using testing::FreePort;
using Json = nlohmann::json;

class Train : public ::testing::Test {
 protected:
  fs::path Path(const std::string& name) const { return folder_.Path(name); }

  // A run of some seconds: a small model on a small recall task.
  static Args Small(const fs::path& out, int steps = 12) {
    return {"--config", "recall",
            "--out",    out.string(),
            "--set",    "hidden_size=32",
            "--set",    "intermediate_size=64",
            "--set",    "num_hidden_layers=2",
            "--set",    "num_attention_heads=2",
            "--set",    "num_key_value_heads=1",
            "--set",    "cache.window=4",
            "--set",    "data.recall.gap=5",
            "--set",    "data.recall.episodes=2",
            "--set",    "train.batch_size=4",
            "--set",    "train.steps=" + std::to_string(steps),
            "--set",    "train.log_every=1",
            "--set",    "train.eval_every=4",
            "--set",    "train.eval_batches=2",
            "--set",    "train.save_every=3"};
  }
  Process Start(const Args& args, const std::string& name, Limits limits = {}) const {
    limits.environment.push_back("OMP_NUM_THREADS=1");
    return Process(With({"train"}, args), folder_.path(), name, limits);
  }
  static std::string Output(const Process& process) { return process.Out() + process.Err(); }

  struct Outcome {
    int status;
    std::string output;
  };
  Outcome Run(const Args& args, const Limits& limits = {}) {
    Process process = Start(args, "run", limits);
    const int status = process.Wait();
    return {status, Output(process)};
  }

  // (kind, step) -> the record, without what depends on the clock.
  static std::map<std::pair<std::string, int64_t>, Json> Metrics(const fs::path& run) {
    std::map<std::pair<std::string, int64_t>, Json> records;
    std::ifstream file(run / "metrics.jsonl");
    for (std::string line; std::getline(file, line);) {
      Json record = Json::parse(line);
      record.erase("tokens_per_second");
      record.erase("cpu_seconds");
      const bool inserted =
          records.emplace(std::pair(record["kind"].get<std::string>(), record["step"].get<int64_t>()), record).second;
      EXPECT_TRUE(inserted) << "twice in the file: " << line;
    }
    return records;
  }
  // Waits until the run has logged `step`.
  static bool WaitForStep(const fs::path& run, int64_t step, const Process& process) {
    bool logged = false;
    WaitUntil([&] {
      std::ifstream file(run / "metrics.jsonl");
      for (std::string line; std::getline(file, line);) {
        const Json record = Json::parse(line, nullptr, false);
        logged = logged || (record.is_object() && record["step"].get<int64_t>() >= step);
      }
      return logged || !process.Running();
    });
    return logged;
  }
  static void ExpectOneLine(const std::string& output) {
    const size_t at = output.find("tensorcache: ");
    ASSERT_NE(at, output.npos) << output;
    EXPECT_EQ(output.find('\n', at), output.size() - 1) << output;
  }

  const testing::TempFolder folder_;
};

TEST_F(Train, LearnsAndLeavesAModel) {
  const Outcome outcome = Run(Small(Path("run"), 60));
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  for (const char* file : {"config.json", "model.safetensors", "train_state.safetensors", "train.json", "metrics.jsonl",
                           "best/config.json", "best/model.safetensors"}) {
    EXPECT_TRUE(fs::exists(Path("run") / file)) << file;
  }
  const auto metrics = Metrics(Path("run"));
  EXPECT_LT(metrics.at({"train", 60})["loss"].get<double>(), metrics.at({"train", 1})["loss"].get<double>() - 0.3);
  const Json layer = metrics.at({"train", 60})["layers"][1];
  for (const char* figure : {"gate", "lambda", "eta", "memory_norm"}) EXPECT_TRUE(layer.contains(figure)) << figure;
  EXPECT_TRUE(metrics.contains({"eval", 60}));
  EXPECT_EQ(Json::parse(ReadAll(Path("run") / "config.json"))["vocab_size"], 52);
}

TEST_F(Train, EndsAtATargetLoss) {
  const Outcome outcome = Run(With(Small(Path("run")), {"--set", "train.target_loss=100"}));
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_NE(outcome.output.find("done: 4 steps"), std::string::npos) << outcome.output;  // the first evaluation
  EXPECT_TRUE(fs::exists(Path("run") / "model.safetensors"));
  EXPECT_FALSE(Metrics(Path("run")).contains({"train", 5}));
  // It may go on for a lower one.
  const std::string model = ReadAll(Path("run") / "model.safetensors");
  const Outcome again = Run({"--resume", "--out", Path("run").string()});
  ASSERT_EQ(again.status, 0) << again.output;
  EXPECT_EQ(ReadAll(Path("run") / "model.safetensors"), model) << "it had reached its target";
  // A model that could not be written behind the last state is written when the run is asked for again.
  fs::copy_file(Path("run") / "best/config.json", Path("run") / "model.safetensors",
                fs::copy_options::overwrite_existing);
  ASSERT_EQ(Run({"--resume", "--out", Path("run").string()}).status, 0);
  EXPECT_EQ(ReadAll(Path("run") / "model.safetensors"), model);
  const Outcome more = Run({"--resume", "--out", Path("run").string(), "--set", "train.target_loss=0"});
  EXPECT_NE(more.output.find("done: 12 steps"), std::string::npos) << more.output;
}

TEST_F(Train, ResumesAfterSigtermToTheLastBit) {
  constexpr int kSteps = 300;  // long enough to be stopped in the middle
  ASSERT_EQ(Run(Small(Path("whole"), kSteps)).status, 0);
  Process process = Start(Small(Path("parts"), kSteps), "stop");
  ASSERT_TRUE(WaitForStep(Path("parts"), 5, process)) << Output(process);
  process.Signal(SIGTERM);
  EXPECT_EQ(process.Wait(), 0) << Output(process);
  ASSERT_NE(Output(process).find("stopped after step"), std::string::npos) << Output(process);
  const Outcome resumed = Run({"--resume", "--out", Path("parts").string()});
  ASSERT_EQ(resumed.status, 0) << resumed.output;
  EXPECT_NE(resumed.output.find("going on after step"), resumed.output.npos);
  EXPECT_EQ(Metrics(Path("parts")), Metrics(Path("whole")));
  EXPECT_EQ(ReadAll(Path("parts") / "model.safetensors"), ReadAll(Path("whole") / "model.safetensors"));
}

TEST_F(Train, KillAtAnyMomentLosesAtMostTheStepsSinceTheLastSave) {
  ASSERT_EQ(Run(Small(Path("whole"), 20)).status, 0);
  for (const int64_t step : {3, 4, 9, 13}) {  // right after saves, evaluations, and between
    const fs::path run = Path("killed" + std::to_string(step));
    Process process = Start(Small(run, 20), "kill");
    ASSERT_TRUE(WaitForStep(run, step, process)) << Output(process);
    process.Signal(SIGKILL);
    process.Wait();
    Outcome resumed = Run({"--resume", "--out", run.string()});
    if (!fs::exists(run / "train_state.safetensors")) {  // killed before the first save was complete
      ExpectOneLine(resumed.output);
      EXPECT_EQ(resumed.status, 2);
      resumed = Run(Small(run, 20));
    }
    ASSERT_EQ(resumed.status, 0) << resumed.output;
    EXPECT_EQ(Metrics(run), Metrics(Path("whole"))) << "killed at step " << step;
    EXPECT_EQ(ReadAll(run / "model.safetensors"), ReadAll(Path("whole") / "model.safetensors"));
  }
}

TEST_F(Train, OneRunAtATimeWritesToAFolder) {
  const fs::path run = Path("run");
  Process first = Start(Small(run, 100000), "first");
  ASSERT_TRUE(WaitForStep(run, 4, first)) << Output(first);
  const Args resume = {"--resume", "--out", run.string(), "--set", "train.steps=20"};
  for (const Args& args : {Small(run, 20), resume}) {
    const Outcome second = Run(args);
    EXPECT_EQ(second.status, 2) << second.output;
    ExpectOneLine(second.output);
    EXPECT_NE(second.output.find("another program writes to this folder"), second.output.npos) << second.output;
  }
  EXPECT_TRUE(first.Running()) << Output(first);
  first.Signal(SIGKILL);
  const Outcome resumed = Run(resume);  // at once
  EXPECT_EQ(resumed.status, 0) << resumed.output;
  EXPECT_FALSE(Metrics(run).empty());
  EXPECT_FALSE(fs::exists(run / ".lock"));
}

TEST_F(Train, WhatAKilledRunLeftIsRemoved) {
  const fs::path run = Path("run");
  fs::create_directories(run / "best");
  const std::vector<fs::path> halves = {run / "model.safetensors.tmp-12-0", run / "best/model.safetensors.tmp-12-1"};
  const auto leave = [&] {
    for (const fs::path& half : halves) std::ofstream(half) << "half of it";
  };
  leave();
  std::ofstream(run / "best/config.json") << "of another model";
  ASSERT_EQ(Run(With(Small(run, 3), {"--set", "train.eval_every=0"})).status, 0);
  for (const fs::path& half : halves) EXPECT_FALSE(fs::exists(half));
  EXPECT_TRUE(Json::parse(ReadAll(run / "best/config.json")).is_object());
  leave();
  ASSERT_EQ(Run({"--resume", "--out", run.string(), "--set", "train.steps=4"}).status, 0);
  for (const fs::path& half : halves) EXPECT_FALSE(fs::exists(half));
}

TEST_F(Train, EveryMethodTrainsAndResumes) {
  const std::vector<Args> variants = {{"--set", "cache.method=full"},
                                      {"--set", "cache.method=window", "--set", "train.dropout=0.2"},
                                      {"--set", "cache.method=streaming_llm"},
                                      {"--set", "cache.method=infini", "--set", "cache.infini.delta=true"},
                                      {"--set", "cache.tensor_cache.rule=delta", "--set", "cache.tensor_cache.slots=2"},
                                      {"--set", "cache.tensor_cache.learn_gate=false", "--set", "train.accumulate=2"},
                                      {"--dtype", "bfloat16"}};
  for (size_t i = 0; i < variants.size(); ++i) {
    const fs::path whole = Path("whole" + std::to_string(i)), parts = Path("parts" + std::to_string(i));
    const Outcome first = Run(With(Small(whole, 6), variants[i]));
    ASSERT_EQ(first.status, 0) << first.output;
    const Outcome start = Run(With(With(Small(parts, 3), variants[i]), {"--set", "train.min_learning_rate=1e-3"}));
    ASSERT_EQ(start.status, 0) << start.output;
    const Outcome rest = Run({"--resume", "--out", parts.string(), "--set", "train.steps=6"});
    ASSERT_EQ(rest.status, 0) << rest.output;
    EXPECT_EQ(ReadAll(parts / "model.safetensors"), ReadAll(whole / "model.safetensors")) << variants[i][1];
  }
}

TEST_F(Train, CarriesStateThroughText) {
  std::ofstream text(Path("text.txt"));
  for (int i = 0; i < 400; ++i) text << "line " << i << " of a text that goes on and on\n";
  text.close();
  const auto args = [&](const std::string& out) {
    return Args{"--config", "tiny-llama",
                "--out",    Path(out).string(),
                "--set",    "data.text.path=" + Path("text.txt").string(),
                "--set",    "data.text.cache_dir=" + Path("cache").string(),
                "--set",    "hidden_size=32",
                "--set",    "intermediate_size=48",
                "--set",    "num_hidden_layers=2",
                "--set",    "num_attention_heads=2",
                "--set",    "num_key_value_heads=1",
                "--set",    "cache.window=8",
                "--set",    "max_position_embeddings=16",
                "--set",    "train.carry_state=true",
                "--set",    "train.batch_size=4",
                "--set",    "train.warmup_steps=0",
                "--set",    "train.eval_every=0",
                "--set",    "train.eval_batches=1",
                "--set",    "train.min_learning_rate=1e-3"};
  };
  const Outcome whole = Run(With(args("whole"), {"--set", "train.steps=8"}));
  ASSERT_EQ(whole.status, 0) << whole.output;
  ASSERT_EQ(Run(With(args("parts"), {"--set", "train.steps=5"})).status, 0);
  const Outcome rest = Run({"--resume", "--out", Path("parts").string(), "--set", "train.steps=8"});
  ASSERT_EQ(rest.status, 0) << rest.output;
  EXPECT_EQ(ReadAll(Path("parts") / "model.safetensors"), ReadAll(Path("whole") / "model.safetensors"));

  const Outcome other = Run(With(args("other"), {"--set", "train.steps=8", "--set", "train.carry_state=false"}));
  ASSERT_EQ(other.status, 0) << other.output;
  EXPECT_NE(ReadAll(Path("other") / "model.safetensors"), ReadAll(Path("whole") / "model.safetensors"));
}

TEST_F(Train, RefusesWhatCannotWork) {
  ASSERT_EQ(Run(Small(Path("run"), 3)).status, 0);
  fs::create_directories(Path("foreign"));
  fs::copy_file(Path("run") / "model.safetensors", Path("foreign") / "train_state.safetensors");
  fs::copy_file(Path("run") / "train.json", Path("foreign") / "train.json");
  fs::create_directories(Path("cut"));
  fs::copy_file(Path("run") / "train.json", Path("cut") / "train.json");
  const std::string state = ReadAll(Path("run") / "train_state.safetensors");
  std::ofstream(Path("cut") / "train_state.safetensors", std::ios::binary) << state.substr(0, state.size() / 2);

  struct Case {
    Args args;
    std::string expected;
  };
  const std::string run = Path("run").string();
  const std::vector<Case> cases = {
      {Small(run), "holds a training run already; add --resume"},
      {{"--resume", "--out", Path("nothing").string()}, "no training to resume"},
      {{"--resume", "--out", Path("foreign").string()}, "not a training state of this program"},
      {{"--resume", "--out", Path("cut").string()}, "train_state.safetensors"},
      {{"--resume", "--out", run, "--set", "train.seed=3"}, "another train.seed"},
      {{"--resume", "--out", run, "--set", "hidden_size=64"}, "another hidden_size"},
      {{"--config", "recal", "--out", Path("x").string()}, "did you mean 'recall'?"},
      {{"--config", "recall"}, "--out is missing"},
      {{"--out", Path("x").string()}, "--config is missing"},
      {With(Small(Path("x")), {"--set", "cache.windw=3"}), "did you mean 'window'?"},
      {With(Small(Path("x")), {"--set", "cache.method=tensor"}), "cache.method"},
      {With(Small(Path("x")), {"--set", "num_key_value_heads=3"}), "multiple"},
      {With(Small(Path("x")),
            {"--set", "cache.tensor_cache.rule=wedge", "--set", "cache.tensor_cache.normalize_reads=true"}),
       "wedge"},
      {With(Small(Path("x")), {"--set", "train.carry_state=true"}), "carr"},
      {With(Small(Path("x")), {"--device", "cuda"}), "CUDA"},
      {With(Small(Path("x")), {"--threads", "-1"}), "--threads is -1"},
      {With(Small(Path("x")), {"--threads", "1000000"}), "--threads is 1000000"},
      {With(Small(Path("x")), {"--threads", ""}), "--threads is ''"},
      {With(Small(Path("x")), {"--device", "tpu"}), "train.device"},
      {With(Small(Path("x")), {"--set", "data.kind=text", "--set", "data.text.path=/nonexistent"}), "/nonexistent"},
      {With(Small("/proc/nowhere"), {}), "/proc/nowhere"},
  };
  for (const Case& c : cases) {
    const Outcome outcome = Run(c.args);
    EXPECT_NE(outcome.status, 0);
    EXPECT_NE(outcome.output.find(c.expected), outcome.output.npos) << outcome.output << "\nexpected: " << c.expected;
    ExpectOneLine(outcome.output);
  }
  EXPECT_EQ(ReadAll(Path("run") / "train_state.safetensors"), state) << "a refused run must change nothing";
}

TEST_F(Train, ArgumentsArriveAsTheyWereGiven) {
  const fs::path out = Path(" a  run 'of' \"mine\" ");
  const Outcome outcome = Run(Small(out, 3));
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_TRUE(fs::exists(out / "model.safetensors"));
  const Outcome empty = Run({"--config", "", "--out", Path("x").string()});
  EXPECT_EQ(empty.status, 2);
  EXPECT_NE(empty.output.find("--config is missing"), empty.output.npos) << empty.output;
  EXPECT_NE(Run({"", "--out", Path("x").string()}).output.find("takes no argument ''"), std::string::npos);
}

// Output that nobody takes is dropped: neither the end of the run, nor in a file that was opened next.
TEST_F(Train, GoesOnWithoutItsStandardStreams) {
  const Outcome whole = Run(Small(Path("whole")));
  ASSERT_EQ(whole.status, 0) << whole.output;
  int broken[2] = {-1, -1};
  ASSERT_EQ(pipe2(broken, O_CLOEXEC), 0);
  close(broken[0]);
  const int full = open("/dev/full", O_WRONLY | O_CLOEXEC);
  for (const int stream : {-1, broken[1], full}) {
    const fs::path run = Path("run" + std::to_string(stream));
    EXPECT_EQ(Run(Small(run), {.out = stream, .err = stream}).status, 0) << stream;
    EXPECT_EQ(Metrics(run), Metrics(Path("whole"))) << stream;
    EXPECT_EQ(ReadAll(run / "model.safetensors"), ReadAll(Path("whole") / "model.safetensors")) << stream;
  }
  close(broken[1]);
  close(full);
}

TEST_F(Train, ThreadsThatWaitSpinBrieflyUnlessToldOtherwise) {
  // Experiments start the second executable themselves.
  const fs::path first = TENSORCACHE_PROGRAM_PATH, second = first.parent_path() / "tensorcache-train";
  for (const fs::path& program : {first, second}) {
    const auto environment = [&](const std::string& kind, const Args& variables) {
      const std::string name = kind + " " + program.filename().string();
      Process process = Start(Small(Path(name), 100000), name, {.environment = variables, .program = program.string()});
      EXPECT_TRUE(WaitForStep(Path(name), 1, process)) << Output(process);
      return process.Environment();
    };
    EXPECT_NE(environment("usual", {}).find("GOMP_SPINCOUNT="), std::string::npos) << program;
    EXPECT_EQ(environment("active", {"OMP_WAIT_POLICY=active"}).find("GOMP_SPINCOUNT="), std::string::npos) << program;
    EXPECT_NE(environment("own", {"GOMP_SPINCOUNT=7"}).find("GOMP_SPINCOUNT=7"), std::string::npos) << program;
  }
}

TEST_F(Train, AFullDiskKeepsTheLastCheckpoint) {
  ASSERT_EQ(Run(Small(Path("run"), 3)).status, 0);
  const std::string before = ReadAll(Path("run") / "train_state.safetensors");
  const Outcome outcome =
      Run({"--resume", "--out", Path("run").string(), "--set", "train.steps=6"}, {.file_bytes = before.size() / 2});
  EXPECT_EQ(outcome.status, 1) << outcome.output;
  ExpectOneLine(outcome.output);
  EXPECT_NE(outcome.output.find("train_state.safetensors"), outcome.output.npos) << outcome.output;
  EXPECT_EQ(ReadAll(Path("run") / "train_state.safetensors"), before);
  EXPECT_EQ(Run({"--resume", "--out", Path("run").string(), "--set", "train.steps=6"}).status, 0);
}

TEST_F(Train, AFullDiskCutsNoLineOfTheMetrics) {
  const fs::path run = Path("run");
  ASSERT_EQ(Run(Small(run, 3)).status, 0);
  const rlim_t room = std::max(fs::file_size(run / "train.json"), fs::file_size(run / "metrics.jsonl")) + 2000;
  const Outcome outcome = Run({"--resume", "--out", run.string(), "--set", "train.steps=100", "--set",
                               "train.save_every=0", "--set", "train.eval_every=0"},
                              {.file_bytes = room});
  EXPECT_EQ(outcome.status, 1) << outcome.output;
  ExpectOneLine(outcome.output);
  EXPECT_NE(outcome.output.find("metrics.jsonl"), outcome.output.npos) << outcome.output;
  EXPECT_TRUE(ReadAll(run / "metrics.jsonl").ends_with("}\n"));
  EXPECT_GT(Metrics(run).size(), 4u);
}

TEST_F(Train, ALossThatIsNoNumberEndsTheRunAndKeepsTheCheckpoint) {
  ASSERT_EQ(Run(With(Small(Path("run"), 3), {"--set", "cache.tensor_cache.rule=delta"})).status, 0);
  const std::string before = ReadAll(Path("run") / "train_state.safetensors");
  // Poison one number of the saved parameters, as a bit flip on the disk would.
  std::string poisoned = before;
  const float nan = NAN;
  std::memcpy(poisoned.data() + poisoned.size() - 4, &nan, 4);
  for (size_t i = 8 + 65536; i + 4 <= poisoned.size(); i += 4096)
    std::memcpy(poisoned.data() + (i & ~size_t{3}), &nan, 4);
  std::ofstream(Path("run") / "train_state.safetensors", std::ios::binary) << poisoned;
  const Outcome outcome = Run({"--resume", "--out", Path("run").string(), "--set", "train.steps=6"});
  EXPECT_EQ(outcome.status, 1) << outcome.output;
  ExpectOneLine(outcome.output);
  EXPECT_NE(outcome.output.find("the loss is"), outcome.output.npos) << outcome.output;
  const auto metrics = Metrics(Path("run"));
  const auto diverged = metrics.find({"diverged", 4});
  ASSERT_NE(diverged, metrics.end());
  EXPECT_NE(outcome.output.find(diverged->second["why"].get<std::string>()), outcome.output.npos) << outcome.output;
  EXPECT_EQ(ReadAll(Path("run") / "train_state.safetensors"), poisoned) << "a failed run must not overwrite";
}

// Two processes on this machine.
Args Rank(int rank, int port) {
  return {"RANK=" + std::to_string(rank), "WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1",
          "MASTER_PORT=" + std::to_string(port)};
}

TEST_F(Train, TwoProcessesLearnWhatOneLearns) {
  ASSERT_EQ(Run(Small(Path("one"))).status, 0);
  const int port = FreePort();
  Process first = Start(Small(Path("two")), "first", {.environment = Rank(0, port)});
  Process second = Start(Small(Path("two")), "second", {.environment = Rank(1, port)});
  ASSERT_EQ(first.Wait(), 0) << Output(first);
  ASSERT_EQ(second.Wait(), 0) << Output(second);
  EXPECT_EQ(Output(second), "") << "one process speaks for all";
  const auto one = Metrics(Path("one")), two = Metrics(Path("two"));
  ASSERT_EQ(one.size(), two.size());
  for (const auto& [key, record] : one) {
    EXPECT_NEAR(record["loss"].get<double>(), two.at(key)["loss"].get<double>(), 1e-5)
        << key.first << " " << key.second;
  }
}

TEST_F(Train, AKilledProcessEndsTheOthersWithAnError) {
  const int port = FreePort();
  Process first = Start(Small(Path("two"), 100000), "first", {.environment = Rank(0, port)});
  Process second = Start(Small(Path("two"), 100000), "second", {.environment = Rank(1, port)});
  ASSERT_TRUE(WaitForStep(Path("two"), 4, first)) << Output(first) << Output(second);
  second.Signal(SIGKILL);
  ASSERT_TRUE(WaitUntil([&] { return !first.Running(); })) << "still waits for the killed one";
  EXPECT_EQ(first.Wait(), 1) << Output(first);
  ExpectOneLine(Output(first));
  EXPECT_TRUE(fs::exists(Path("two") / "train_state.safetensors"));
}

}  // namespace
}  // namespace tensorcache
