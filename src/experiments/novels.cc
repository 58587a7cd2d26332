// Long-context language modelling on English novels: the paper's OpenWebText table at a size for CPUs.
#include <fmt/format.h>

#include <filesystem>

#include "core/config.h"
#include "core/file.h"
#include "experiments/experiments.h"
#include "experiments/methods.h"
#include "experiments/text_study.h"
#include "tensorcache/tokenizer.h"

namespace tensorcache::experiments {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kVocabulary = 2048;

// NLL by method (kAllMethods) and context, 1 to 32 times the trained length: of OpenWebText, most of them of single seeds.
std::vector<std::vector<std::pair<double, double>>> Published() {
  return {
      {{4.05, 0}, {4.46, 0}, {4.49, 0}, {5.13, 0}, {5.40, 0}, {6.00, 0}},
      {{4.16, 0}, {3.98, 0}, {4.86, 0}, {4.78, 0}, {5.08, 0}, {5.44, 0}},
      {{4.11, 0}, {4.66, 0}, {4.74, 0}, {4.85, 0}, {5.35, 0}, {5.65, 0}},
      {{4.14, 0}, {4.05, 0}, {4.49, 0}, {4.57, 0}, {5.01, 0}, {5.42, 0}},
      {{3.93, 0}, {4.00, 0}, {4.14, 0}, {4.29, 0}, {4.55, 0}, {5.14, 0}},
  };
}

// Learned from the training novels once, and kept with the runs.
Result<std::string> NovelTokenizer(const ExperimentOptions& options, const std::string& texts,
                                   const std::string& checksum) {
  const std::string folder = fmt::format("{}/tokenizers/novels-{}-{}", options.work, kVocabulary, checksum);
  if (Exists(folder + "/tokenizer.json")) return folder;
  TC_ASSIGN_OR_RETURN(const std::vector<data::TextFile> files, data::ListTextFiles(texts));
  std::vector<std::string> contents;
  for (const data::TextFile& file : files) {
    TC_ASSIGN_OR_RETURN(std::string content, ReadWholeFile(file.path, int64_t{1} << 30));
    contents.push_back(std::move(content));
  }
  const std::vector<std::string_view> views(contents.begin(), contents.end());
  TC_ASSIGN_OR_RETURN(const auto tokenizer, TrainByteLevelBpe(views, kVocabulary));
  TC_RETURN_IF_ERROR(MakeFolder(folder));
  TC_RETURN_IF_ERROR(tokenizer->Save(folder));
  return folder;
}

// The texts that the config names after all changes, and their tokenizer.
Status FindTexts(const ExperimentOptions& options, TextStudy* study) {
  data::TextDataConfig& text = study->config.data.text;
  for (const std::string& path : {text.path, text.valid_path}) {
    if (Exists(path)) continue;
    return NotFound(
        fmt::format("{} is not there; --data names a folder with novels/train and novels/valid, each full of "
                    "text files",
                    path));
  }
  std::vector<std::string> read = {text.path, text.valid_path};
  if (!text.tokenizer.empty()) read.push_back(text.tokenizer);
  TC_ASSIGN_OR_RETURN(study->data, DataChecksum(read));
  if (text.tokenizer.empty()) {
    TC_ASSIGN_OR_RETURN(text.tokenizer, NovelTokenizer(options, text.path, study->data));
  }
  TC_ASSIGN_OR_RETURN(const auto tokenizer, LoadTokenizer(text.tokenizer));
  study->vocabulary = tokenizer->vocab_size();
  return OkStatus();
}

Result<TextStudy> NovelStudy(const ExperimentOptions& options) {
  TextStudy study;
  study.name = "novels";
  study.changes = options.changes;
  study.ours = 4;
  study.methods = 5;
  study.contexts = {256, 512, 1024, 2048, 4096, 8192};
  study.starts = 24;
  study.published = Published();
  study.published_same_text = false;
  train::TrainConfig& config = study.config;
  config.model = {.vocab_size = 0,
                  .hidden_size = 256,
                  .intermediate_size = 1024,
                  .num_hidden_layers = 6,
                  .num_attention_heads = 4,
                  .num_key_value_heads = 4,
                  .max_position_embeddings = 256,
                  .cache = {.window = 16}};
  const std::string folder = NovelFolder(options);
  config.data.text = {.path = folder + "/train", .valid_path = folder + "/valid", .tokenizer = ""};
  config.train = {.steps = 450,
                  .batch_size = 16,
                  .learning_rate = 2e-3,
                  .min_learning_rate = 1e-4,
                  .warmup_steps = 100,
                  .weight_decay = 0.1,
                  .beta2 = 0.95,
                  .eval_every = 100,
                  .eval_batches = 10,
                  .save_every = 100};
  if (options.quick()) {
    config.model.hidden_size = 128;
    config.model.intermediate_size = 512;
    config.model.num_hidden_layers = 3;
    config.train.steps = 60;
    config.train.warmup_steps = 10;
    study.starts = 4;
    study.contexts.resize(4);
  }
  for (const std::string& change : options.changes) TC_RETURN_IF_ERROR(ApplyOverride(change, &config));
  TC_RETURN_IF_ERROR(FindTexts(options, &study));
  study.least_context_for_claim = 4 * config.model.max_position_embeddings;
  study.arms = FiveTextArms();
  const auto carried = [&](size_t arm, std::vector<size_t> against) {
    TextArm variant = study.arms[arm];
    variant.label += ", carried state";
    variant.changes.emplace_back("train.carry_state=true");
    variant.against = std::move(against);
    study.arms.push_back(std::move(variant));
  };
  carried(4, {4, 6});  // and beside the window that is carried, too
  carried(1, {1});
  return study;
}

}  // namespace

Plan PlanNovels(const ExperimentOptions& options) {
  TC_ASSIGN_OR_RETURN(const TextStudy study, NovelStudy(options));
  return PlanTextStudy(study, OneSeed(options)[0]);
}

Result<ExperimentResult> MeasureNovels(const MeasureContext& context) {
  TC_ASSIGN_OR_RETURN(const TextStudy study, NovelStudy(context.options));
  const ModelConfig& model = study.config.model;
  TC_ASSIGN_OR_RETURN(const auto novels, data::ListTextFiles(study.config.data.text.path));
  TC_ASSIGN_OR_RETURN(const auto others, data::ListTextFiles(study.config.data.text.valid_path));
  ExperimentResult result{
      .experiment = "novels",
      .title = "Long-context quality: novels",
      .paper = "Section 4.4, Table 2 (a), scaled down",
      .setup = fmt::format("The paper's table is of 130M parameters on OpenWebText, window 512 of blocks of 1024. "
                           "Here: {} layers of width {}, window {}, blocks of {} tokens, {} steps of {} blocks on {} "
                           "novels; {} others are held out. A vocabulary of {} tokens. {}",
                           model.num_hidden_layers, model.hidden_size, model.cache.window,
                           model.max_position_embeddings, study.config.train.steps, study.config.train.batch_size,
                           novels.size(), others.size(), study.vocabulary, TextMemoryNote())};
  TC_RETURN_IF_ERROR(MeasureTextStudy(context, study, OneSeed(context.options)[0], &result));
  return result;
}

}  // namespace tensorcache::experiments
