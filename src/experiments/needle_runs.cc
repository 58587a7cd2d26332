#include "experiments/needle_runs.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/config.h"
#include "core/file.h"
#include "experiments/text_study.h"
#include "tensorcache/tokenizer.h"
#include "train/presets.h"

namespace tensorcache::experiments {
namespace {

constexpr int64_t kMillion = 1'000'000;

// Needles of a task and length: as many as take about the same time at each length, and some of the longest.
int64_t QuestionsOf(const ExperimentOptions& options, int64_t length) {
  const int64_t most = options.quick() ? 8 : 32, least = options.quick() ? 1 : 2;
  const int64_t tokens = options.quick() ? 16 << 10 : 512 << 10;
  return std::clamp(tokens / length, least, most);
}

// The job's texts, which the user may have changed.
Status FindTexts(TrainJob* job) {
  const data::TextDataConfig& text = job->config.data.text;
  for (const std::string& path : {text.path, text.valid_path}) {
    if (Exists(path)) continue;
    return NotFound(fmt::format(
        "{} is not there; --data names a folder with novels/train and novels/valid, each full of text files", path));
  }
  TC_ASSIGN_OR_RETURN(job->data, DataChecksum({text.path, text.valid_path}));
  return OkStatus();
}

}  // namespace

std::vector<int64_t> NeedleLengths(const ExperimentOptions& options, const Arm& arm) {
  const bool ours = arm.design == MemoryDesign::kAssociative;
  if (options.quick()) return ours ? std::vector<int64_t>{512, 4 << 10, 64 << 10} : std::vector<int64_t>{512, 4 << 10};
  std::vector<int64_t> lengths = {512, 1 << 10, 4 << 10, 16 << 10};
  if (arm.method == CacheMethod::kFull) return lengths;  // whose time grows with the square
  lengths.push_back(64 << 10);
  if (ours) lengths.insert(lengths.end(), {256 << 10, kMillion});
  return lengths;
}

std::vector<double> NeedleDepths(const ExperimentOptions& options) {
  if (options.quick()) return {0, 0.5, 1};
  return {0, 0.25, 0.5, 0.75, 1};
}

Result<TrainJob> MakeNeedleJob(const ExperimentOptions& options, const Arm& arm, uint64_t seed) {
  TrainJob job{.name = fmt::format("needle-{}-{}", arm.Name(), seed)};
  TC_RETURN_IF_ERROR(train::ReadPresetOrFile("needle", &job.config));
  const std::string folder = NovelFolder(options);
  job.config.data.text.path = folder + "/train";
  job.config.data.text.valid_path = folder + "/valid";
  std::vector<std::string> usual;
  if (options.quick()) usual = {"train.steps=100", "train.warmup_steps=20"};
  // The preset has the associative design.
  const std::vector<std::string> own = {fmt::format("cache.method={}", NameOf(arm.method)),
                                        fmt::format("cache.tensor_cache.design={}", NameOf(arm.design)),
                                        fmt::format("train.seed={}", seed)};
  TC_RETURN_IF_ERROR(ApplyChanges(usual, own, options.changes, &job));
  TC_RETURN_IF_ERROR(FindTexts(&job));
  return job;
}

void NeedleTally::Add(const NeedleAnswer& answer) {
  Add({.questions = 1, .whole = answer.Whole() ? 1 : 0, .tokens = answer.tokens, .right = answer.right});
}

void NeedleTally::Add(const NeedleTally& other) {
  questions += other.questions;
  whole += other.whole;
  tokens += other.tokens;
  right += other.right;
}

NeedleTally NeedleScores::At(size_t length, std::optional<size_t> task, std::optional<size_t> depth) const {
  NeedleTally sum;
  for (size_t t = 0; t < tallies.size(); ++t) {
    if (task && *task != t) continue;
    for (size_t d = 0; d < tallies[t][length].size(); ++d) {
      if (!depth || *depth == d) sum.Add(tallies[t][length][d]);
    }
  }
  return sum;
}

Result<NeedleScores> ScoreNeedles(const MeasureContext& context, const Arm& arm, const std::vector<uint64_t>& seeds) {
  const std::vector<double> depths = NeedleDepths(context.options);
  NeedleScores scores{.arm = arm, .lengths = NeedleLengths(context.options, arm)};
  scores.state_bytes.resize(scores.lengths.size());
  scores.tallies.assign(data::kNeedleTasks.size(),
                        std::vector(scores.lengths.size(), std::vector<NeedleTally>(depths.size())));
  for (const uint64_t seed : seeds) {
    TC_ASSIGN_OR_RETURN(const TrainJob job, MakeNeedleJob(context.options, arm, seed));
    TC_ASSIGN_OR_RETURN(TrainedRun run, context.lab.Find(job));
    TC_ASSIGN_OR_RETURN(const auto model, Model::Load(run.folder, {.threads = context.options.threads}));
    TC_ASSIGN_OR_RETURN(const data::Corpus essays, data::OpenCorpus(job.config.data.text, *MakeByteTokenizer(), {}));
    for (size_t l = 0; l < scores.lengths.size(); ++l) {
      for (size_t t = 0; t < data::kNeedleTasks.size(); ++t) {
        for (int64_t row = 0; row < QuestionsOf(context.options, scores.lengths[l]); ++row) {
          const NeedleQuestion question{
              .task = data::kNeedleTasks[t], .length = scores.lengths[l], .row = row, .seed = seed + 1};
          TC_ASSIGN_OR_RETURN(const auto answers, AskAtDepths(model, essays, question, depths));
          for (size_t d = 0; d < depths.size(); ++d) scores.tallies[t][l][d].Add(answers[d]);
          scores.state_bytes[l] = answers.back().state_bytes;
        }
      }
    }
    scores.runs.push_back(std::move(run));
  }
  return scores;
}

}  // namespace tensorcache::experiments
