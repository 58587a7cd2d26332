#include "experiments/lab.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "testing/temp_folder.h"

namespace tensorcache::experiments {
namespace {

namespace fs = std::filesystem;

// Stands in for the training program: it leaves the metrics of a run of five steps and a line in a diary. The seed in its
// config tells it how to behave.
constexpr char kProgram[] = R"(#!/bin/sh
# train --config FILE --out DIR --threads N [--resume]
config=$3 out=$5
echo "$(grep -o '"seed": [0-9]*' "$config") $8" >>"$(dirname "$0")/diary"
if grep -q '"seed": 666' "$config"; then
  echo "tensorcache: the disk is full" >&2
  exit 1
fi
if grep -q '"seed": 777' "$config" && [ "$8" != --resume ]; then
  trap 'touch "$out/train_state.safetensors"; exit 0' TERM
  touch "$(dirname "$0")/listens"
  while :; do sleep 0.05; done
fi
if grep -q '"seed": 999' "$config"; then
  echo '{"kind":"train","step":1,"loss":2.0,"tokens":40,"cpu_seconds":0.5}' >"$out/metrics.jsonl"
  echo '{"kind":"diverged","step":4,"why":"step 4: the loss is nan"}' >>"$out/metrics.jsonl"
  touch "$out/model.safetensors"
  echo "tensorcache: step 4: the loss is nan" >&2
  exit 1
fi
steps=5
if grep -q '"seed": 888' "$config"; then steps=3; fi
for step in $(seq $steps); do
  echo '{"kind":"train","step":'$step',"loss":2.0,"tokens":40,"tokens_per_second":100,"cpu_seconds":0.'$step',"layers":[{},{"gate":[0.25,0.75],"lambda":[0.9],"eta":[0.1]}]}'
done >"$out/metrics.jsonl"
echo '{"kind":"eval","step":'$steps',"loss":0.5,"accuracy":0.75,"tokens":9,"best":true}' >>"$out/metrics.jsonl"
touch "$out/model.safetensors"
)";

class LabTest : public ::testing::Test {
 protected:
  LabTest() {
    std::ofstream(program_) << kProgram;
    chmod(program_.c_str(), 0755);
  }

  LabOptions Options() const {
    return {.folder = temp_.Path("lab"), .program = program_, .jobs = 2, .threads = 1, .stop = &stop_};
  }
  static TrainJob Job(uint64_t seed) {
    TrainJob job{.name = "job" + std::to_string(seed), .changes = "train.seed=" + std::to_string(seed)};
    job.config.train.steps = 5;
    job.config.train.seed = seed;
    return job;
  }
  int Runs() const {
    std::ifstream diary(temp_.Path("diary"));
    int lines = 0;
    for (std::string line; std::getline(diary, line);) ++lines;
    return lines;
  }

  const testing::TempFolder temp_;
  const std::string program_ = temp_.Path("program");
  std::atomic<bool> stop_ = false;
};

TEST_F(LabTest, TrainsEachConfigurationOnceAndTellsWhatBecameOfIt) {
  auto lab = Lab::Open(Options());
  ASSERT_TRUE(lab.ok()) << lab.status().message();
  EXPECT_EQ((*lab)->Find(Job(1)).status().code(), StatusCode::kNotFound);
  TrainJob same = Job(1);
  same.name = "another name for it";
  const std::vector<TrainJob> jobs = {Job(1), Job(2), same, Job(3)};
  EXPECT_EQ((*lab)->Missing(jobs).size(), 3u);
  ASSERT_TRUE((*lab)->Train(jobs).ok());
  EXPECT_EQ(Runs(), 3);
  EXPECT_TRUE((*lab)->Missing(jobs).empty());

  const auto run = (*lab)->Find(same);
  ASSERT_TRUE(run.ok()) << run.status().message();
  EXPECT_EQ(run->record.name, "job1");
  EXPECT_EQ(run->record.changes, "train.seed=1");
  EXPECT_EQ(run->record.steps, 5);
  EXPECT_EQ(run->record.tokens, 200);
  EXPECT_DOUBLE_EQ(run->seconds_per_step, 0.3);
  EXPECT_DOUBLE_EQ(run->record.seconds, 1.5);
  EXPECT_GT(run->peak_bytes, 0);
  ASSERT_EQ(run->evaluations.size(), 1u);
  EXPECT_EQ(run->evaluations[0].accuracy, 0.75);
  ASSERT_EQ(run->layers.size(), 1u);
  EXPECT_EQ(run->layers[0].layer, 1);  // the second of two
  EXPECT_DOUBLE_EQ(run->layers[0].gate, 0.5);
  EXPECT_DOUBLE_EQ(run->layers[0].lambda, 0.9);

  lab->reset();
  auto again = Lab::Open(Options());
  ASSERT_TRUE(again.ok());
  ASSERT_TRUE((*again)->Train(jobs).ok());
  EXPECT_EQ(Runs(), 3);
}

TEST_F(LabTest, ReportsProgressFromZeroToOne) {
  LabOptions options = Options();
  std::vector<LabProgress> seen;
  options.progress = [&](const LabProgress& progress) { seen.push_back(progress); };
  auto lab = Lab::Open(options);
  ASSERT_TRUE((*lab)->Train(std::vector<TrainJob>{Job(1), Job(2)}).ok());
  ASSERT_FALSE(seen.empty());
  for (const LabProgress& progress : seen) {
    EXPECT_EQ(progress.total_runs, 2);
    EXPECT_GE(progress.work, 0);
    EXPECT_LE(progress.work, 1);
  }
  EXPECT_EQ(seen.back().runs, 2);
  EXPECT_EQ(seen.back().work, 1);
}

TEST_F(LabTest, AFailureQuotesTheProgramAndKeepsTheRest) {
  auto lab = Lab::Open(Options());
  const Status status = (*lab)->Train(std::vector<TrainJob>{Job(1), Job(666), Job(2)});
  EXPECT_EQ(status.code(), StatusCode::kIoError);
  EXPECT_NE(status.message().find("job666 failed: the disk is full"), std::string::npos) << status.message();
  const Status next = (*lab)->Train(std::vector<TrainJob>{Job(1), Job(2)});
  EXPECT_TRUE(next.ok()) << next.message();
}

TEST_F(LabTest, ThatARunDivergesIsAFailureUnlessItMay) {
  auto lab = Lab::Open(Options());
  TrainJob job = Job(999);
  const Status status = (*lab)->Train(std::vector<TrainJob>{job});
  EXPECT_NE(status.message().find("job999 failed: step 4: the loss is nan"), std::string::npos) << status.message();
  EXPECT_EQ((*lab)->Find(job).status().code(), StatusCode::kNotFound);

  job.may_diverge = true;
  ASSERT_TRUE((*lab)->Train(std::vector<TrainJob>{job, Job(1)}).ok());
  const auto run = (*lab)->Find(job);
  ASSERT_TRUE(run.ok()) << run.status().message();
  EXPECT_EQ(run->diverged, "step 4: the loss is nan");
  EXPECT_EQ(run->record.steps, 3);
  EXPECT_DOUBLE_EQ(run->record.seconds, 1.5);
  EXPECT_TRUE((*lab)->Missing(std::vector<TrainJob>{job}).empty());
  EXPECT_EQ((*lab)->WorkLeft(std::vector<TrainJob>{job}), 0);
  EXPECT_EQ((*lab)->Find(Job(1))->diverged, "");
  job.may_diverge = false;  // others still want a model of it
  EXPECT_EQ((*lab)->Missing(std::vector<TrainJob>{job}).size(), 1u);

  TrainJob fails = Job(666);  // in another way
  fails.may_diverge = true;
  EXPECT_FALSE((*lab)->Train(std::vector<TrainJob>{fails}).ok());
}

TEST_F(LabTest, ARunThatEndsEarlyIsNotComplete) {
  auto lab = Lab::Open(Options());
  const Status status = (*lab)->Train(std::vector<TrainJob>{Job(888)});
  EXPECT_NE(status.message().find("ended after 3 of 5 steps"), std::string::npos) << status.message();
  TrainJob solved = Job(888);
  solved.config.train.target_loss = 0.6;  // which its evaluation reaches
  EXPECT_TRUE((*lab)->Train(std::vector<TrainJob>{solved}).ok());
}

TEST_F(LabTest, ARunWhoseModelIsGoneIsMissing) {
  LabOptions options = Options();
  options.commit = "abc";
  auto lab = Lab::Open(options);
  const std::vector<TrainJob> jobs = {Job(1)};
  ASSERT_TRUE((*lab)->Train(jobs).ok());
  const auto run = (*lab)->Find(jobs[0]);
  ASSERT_TRUE(run.ok());
  EXPECT_EQ(run->record.commit, "abc");
  fs::remove(run->folder + "/model.safetensors");
  EXPECT_EQ((*lab)->Missing(jobs).size(), 1u);
  ASSERT_TRUE((*lab)->Train(jobs).ok());
  std::ofstream(run->folder + "/done.json") << "{";
  const auto damaged = (*lab)->Find(jobs[0]);
  ASSERT_FALSE(damaged.ok());
  EXPECT_NE(damaged.status().message().find("remove " + run->folder), std::string::npos) << damaged.status().message();
}

TEST_F(LabTest, AStopLetsRunsSaveAndTheNextTimeTheyGoOn) {
  auto lab = Lab::Open(Options());
  std::thread stopper([&] {
    while (!fs::exists(temp_.Path("listens"))) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    stop_ = true;
  });
  const std::vector<TrainJob> jobs = {Job(777)};
  const Status status = (*lab)->Train(jobs);
  stopper.join();
  EXPECT_NE(status.message().find("stopped"), std::string::npos) << status.message();
  EXPECT_EQ((*lab)->Missing(jobs).size(), 1u);
  stop_ = false;
  ASSERT_TRUE((*lab)->Train(jobs).ok());  // --resume: it finishes
  EXPECT_TRUE((*lab)->Missing(jobs).empty());
}

TEST_F(LabTest, ARunThatStartsFromAnotherWaitsForIt) {
  TrainJob second = Job(2);
  second.from = std::make_shared<const TrainJob>(Job(1));
  TrainJob third = Job(3);
  third.from = std::make_shared<const TrainJob>(second);
  auto lab = Lab::Open(Options());
  const std::vector<TrainJob> jobs = {third, Job(1)};
  ASSERT_EQ((*lab)->Missing(jobs).size(), 3u);
  EXPECT_EQ((*lab)->Missing(jobs)[0].name, "job1");
  ASSERT_TRUE((*lab)->Train(jobs).ok());
  EXPECT_EQ(Runs(), 3);
  std::ifstream diary(temp_.Path("diary"));
  std::string first, next, last;
  std::getline(diary, first);
  std::getline(diary, next);
  std::getline(diary, last);
  EXPECT_EQ(first.find("--set"), first.npos) << first;
  EXPECT_NE(next.find("\"seed\": 2 --set"), next.npos) << next;
  EXPECT_NE(last.find("\"seed\": 3 --set"), last.npos) << last;
  // The same configuration from random parameters is another run.
  EXPECT_EQ((*lab)->Missing(std::vector<TrainJob>{Job(2)}).size(), 1u);
}

TEST_F(LabTest, TextsCountByWhatIsInThem) {
  TrainJob job = Job(1);
  job.config.data.text = {.path = "/here/text", .tokenizer = "/here/tokenizer"};
  job.data = "checksum";
  TrainJob moved = job;
  moved.config.data.text = {.path = "there/text", .tokenizer = "there/tokenizer"};
  TrainJob changed = job;
  changed.data = "another checksum";
  auto lab = Lab::Open(Options());
  ASSERT_TRUE((*lab)->Train(std::vector<TrainJob>{job}).ok());
  EXPECT_TRUE((*lab)->Missing(std::vector<TrainJob>{moved}).empty());
  EXPECT_EQ((*lab)->Missing(std::vector<TrainJob>{changed}).size(), 1u);
}

TEST_F(LabTest, AProcessThatTrainedNothingSaysNothingOfMemory) {
  auto lab = Lab::Open(Options());
  const std::vector<TrainJob> jobs = {Job(1)};
  ASSERT_TRUE((*lab)->Train(jobs).ok());
  const std::string folder = (*lab)->Find(Job(1))->folder;
  fs::remove(folder + "/done.json");  // as if this program had died just before
  std::ofstream(folder + "/train_state.safetensors") << "x";
  ASSERT_TRUE((*lab)->Train(jobs).ok());
  EXPECT_EQ((*lab)->Find(Job(1))->peak_bytes, 0);
}

TEST_F(LabTest, OneProgramAtATimeWorksInAFolder) {
  auto lab = Lab::Open(Options());
  ASSERT_TRUE(lab.ok());
  const auto second = Lab::Open(Options());
  EXPECT_EQ(second.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(second.status().message().find("another program"), std::string::npos);
  lab->reset();
  EXPECT_TRUE(Lab::Open(Options()).ok());
}

TEST_F(LabTest, AMissingTrainingProgramIsAnError) {
  LabOptions options = Options();
  options.program = "/does/not/exist";
  auto lab = Lab::Open(options);
  EXPECT_NE((*lab)->Train(std::vector<TrainJob>{Job(1)}).message().find("/does/not/exist"), std::string::npos);
}

TEST(TrainingWorkTest, GrowsWithStepsRowsAndTokens) {
  TrainJob job;
  job.config.data.kind = data::DataKind::kRecall;
  const double work = TrainingWork(job);
  EXPECT_GT(work, 0);
  job.config.train.steps *= 3;
  EXPECT_NEAR(TrainingWork(job) / work, 3, 1e-9);
  job.config.data.recall.gap *= 4;
  EXPECT_GT(TrainingWork(job) / work, 6);
}

TEST(TrainingWorkTest, CountsTheVocabularyOfTexts) {
  TrainJob job;
  job.config.data.kind = data::DataKind::kText;
  job.config.model.vocab_size = 0;
  job.vocabulary = 1000;
  const double work = TrainingWork(job);
  job.vocabulary = 50000;
  const auto tokens = static_cast<double>(job.config.train.steps * job.config.train.batch_size * job.config.Block());
  // Logits and both of their gradients, two operations a product.
  const double logits = 6.0 * 49000 * static_cast<double>(job.config.model.hidden_size) * tokens;
  EXPECT_NEAR(TrainingWork(job) - work, logits, 1e-3 * work);
}

TEST(TrainingWorkTest, CountsTheAnswersOfATask) {
  TrainJob job;
  job.config.data.kind = data::DataKind::kMqar;
  job.config.data.mqar.min_pairs = 4;
  job.config.model.vocab_size = 0;
  const double work = TrainingWork(job);
  job.config.data.mqar.vocab += 1000;
  // Of the mixture a row has 28.8 on average.
  const double answers = 28.8 * static_cast<double>(job.config.train.steps * job.config.train.batch_size);
  const double logits = 6.0 * 1000 * static_cast<double>(job.config.model.hidden_size) * answers;
  EXPECT_NEAR((TrainingWork(job) - work) / logits, 1, 1e-3);
}

TEST_F(LabTest, OfAnInterruptedRunOnlyTheLastStepsAreLeft) {
  auto lab = Lab::Open(Options());
  const std::vector<TrainJob> jobs = {Job(888), Job(1)};
  const double work = TrainingWork(jobs[0]);
  EXPECT_NEAR((*lab)->WorkLeft(jobs) / work, 2, 1e-9);
  EXPECT_FALSE((*lab)->Train(std::vector<TrainJob>{jobs[0]}).ok());  // ends after three of its five steps
  EXPECT_NEAR((*lab)->WorkLeft(jobs) / work, 1.4, 1e-9);
  ASSERT_TRUE((*lab)->Train(std::vector<TrainJob>{jobs[1]}).ok());
  EXPECT_NEAR((*lab)->WorkLeft(jobs) / work, 0.4, 1e-9);
}

}  // namespace
}  // namespace tensorcache::experiments
