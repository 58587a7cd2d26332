// Long-context language modelling on Shakespeare: five methods, contexts up to 64 times the trained length.
#include <fmt/format.h>

#include "core/config.h"
#include "core/file.h"
#include "experiments/experiments.h"
#include "experiments/methods.h"
#include "experiments/text_study.h"
#include "tensorcache/tokenizer.h"
#include "train/presets.h"

namespace tensorcache::experiments {
namespace {

// NLL and deviation by method (kAllMethods) and context (256 to 16384).
const std::vector<std::vector<std::pair<double, double>>> kPublished = {
    {{4.91, 0.57}, {6.10, 0.44}, {5.24, 0.57}, {6.02, 0.79}, {6.09, 1.05}, {6.13, 0.82}, {5.73, 0.30}},
    {{4.91, 0.57}, {6.25, 0.39}, {5.48, 0.61}, {6.16, 0.80}, {6.27, 1.08}, {6.24, 0.80}, {5.82, 0.29}},
    {{4.91, 0.57}, {6.25, 0.39}, {5.47, 0.60}, {6.16, 0.80}, {6.24, 1.06}, {6.21, 0.81}, {5.79, 0.29}},
    {{4.80, 0.53}, {6.06, 0.37}, {5.14, 0.57}, {5.79, 0.83}, {5.87, 1.11}, {5.92, 0.86}, {5.51, 0.31}},
    {{4.79, 0.50}, {5.98, 0.44}, {4.96, 0.58}, {5.60, 0.67}, {5.66, 1.00}, {5.70, 0.76}, {5.32, 0.29}},
};

Result<TextStudy> ShakespeareStudy(const ExperimentOptions& options) {
  TextStudy study;
  study.name = "shakespeare";
  study.changes = options.changes;
  study.ours = 4;
  study.methods = 5;
  study.contexts = {256, 512, 1024, 2048, 4096, 8192, 16384};
  study.starts = 4;
  study.published = kPublished;
  TC_RETURN_IF_ERROR(train::ReadPresetOrFile("shakespeare", &study.config));
  data::TextDataConfig& text = study.config.data.text;
  text.path = options.data + "/shakespeare/input.txt";
  text.tokenizer = options.data + "/tokenizers/gpt2-bpe";
  if (!Exists(text.path)) {
    return NotFound(fmt::format("{} is not there; --data names the folder with shakespeare/input.txt", text.path));
  }
  std::vector<std::string> changes = {"train.batch_size=2", "train.eval_every=500", "train.eval_batches=20",
                                      "train.save_every=250"};
  if (options.quick()) {
    changes.insert(changes.end(), {"train.steps=30", "train.warmup_steps=10"});
    study.contexts.resize(5);
  }
  changes.insert(changes.end(), options.changes.begin(), options.changes.end());
  for (const std::string& change : changes) TC_RETURN_IF_ERROR(ApplyOverride(change, &study.config));
  std::vector<std::string> read = {text.path, text.tokenizer};
  if (!text.valid_path.empty()) read.push_back(text.valid_path);
  TC_ASSIGN_OR_RETURN(study.data, DataChecksum(read));
  TC_ASSIGN_OR_RETURN(const auto tokenizer, LoadTokenizer(text.tokenizer));
  study.vocabulary = tokenizer->vocab_size();
  study.arms = FiveTextArms();
  study.arms.push_back({.label = "Tensor Cache, defaults", .method = CacheMethod::kTensorCache, .against = {4, 1}});
  return study;
}

}  // namespace

Plan PlanShakespeare(const ExperimentOptions& options) {
  TC_ASSIGN_OR_RETURN(const TextStudy study, ShakespeareStudy(options));
  return PlanTextStudy(study, OneSeed(options)[0]);
}

Result<ExperimentResult> MeasureShakespeare(const MeasureContext& context) {
  TC_ASSIGN_OR_RETURN(const TextStudy study, ShakespeareStudy(context.options));
  const ModelConfig& model = study.config.model;
  ExperimentResult result{
      .experiment = "shakespeare",
      .title = "Long-context quality: Shakespeare",
      .paper = "Section 4.4, Table 2 (b)",
      .setup = fmt::format(
          "{} layers, width {}, window {}, blocks of {} GPT-2 tokens, {} steps of {} blocks, dropout {}. "
          "The last tenth of the text is held out; NLL is the mean over a whole context, streamed from an "
          "empty state. {} The variant has the paper's defaults: a memory in every layer, addressed behind rotary "
          "embedding, nothing normalised.",
          model.num_hidden_layers, model.hidden_size, model.cache.window, study.config.Block(),
          study.config.train.steps, study.config.train.batch_size, study.config.train.dropout, TextMemoryNote())};
  TC_RETURN_IF_ERROR(MeasureTextStudy(context, study, OneSeed(context.options)[0], &result));
  return result;
}

}  // namespace tensorcache::experiments
