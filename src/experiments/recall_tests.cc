#include "experiments/recall_tests.h"

namespace tensorcache::experiments {

data::RecallConfig RecallTest::TaskOf(const TrainJob& job) const {
  data::RecallConfig task = job.config.data.recall;
  task.gap = gap.value_or(task.gap);
  task.min_gap = 0;
  task.episodes = episodes.value_or(task.episodes);
  task.stores = stores.value_or(task.stores);
  return task;
}

Result<RecallScores> ScoreRecallTest(const MeasureContext& context, const RecallRun& run,
                                     const std::vector<uint64_t>& seeds, const RecallTest& test) {
  RecallScores scores;
  for (const uint64_t seed : seeds) {
    TC_ASSIGN_OR_RETURN(const TrainJob job, MakeRecallJob(context.options, run, seed));
    TC_ASSIGN_OR_RETURN(TrainedRun trained, context.lab.Find(job));
    TC_ASSIGN_OR_RETURN(const auto model, Model::Load(trained.folder, {.threads = context.options.threads}));
    const data::RecallConfig task = test.TaskOf(job);
    TC_ASSIGN_OR_RETURN(const auto source, data::MakeRecallSource(task, seed + 1));
    const int64_t rows = test.rows > 0 ? test.rows : RecallRows(context.options, task);
    TC_ASSIGN_OR_RETURN(const TaskScore score, StreamTask(model, *source, {.rows = rows, .prefill = true}));
    scores.accuracy.push_back(score.accuracy);
    scores.nll.push_back(score.nll);
    scores.runs.push_back(std::move(trained));
  }
  return scores;
}

Result<double> TestStateBytes(const MeasureContext& context, const RecallRun& run, uint64_t seed, RingType window,
                              const RecallTest& test) {
  TC_ASSIGN_OR_RETURN(const TrainJob job, MakeRecallJob(context.options, run, seed));
  TC_ASSIGN_OR_RETURN(const TrainedRun trained, context.lab.Find(job));
  TC_ASSIGN_OR_RETURN(const auto model, Model::Load(trained.folder, {.ring = window}));
  TC_ASSIGN_OR_RETURN(const int64_t bytes, RecallStateBytes(model, test.TaskOf(job)));
  return static_cast<double>(bytes);
}

}  // namespace tensorcache::experiments
