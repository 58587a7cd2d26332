// Training data of any kind, from its config.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "data/batch.h"
#include "data/corpus.h"
#include "data/mqar_task.h"
#include "data/needle_task.h"
#include "data/recall_task.h"
#include "tensorcache/status.h"
#include "tensorcache/tokenizer.h"

namespace tensorcache::data {

enum class DataKind { kRecall, kMqar, kNeedle, kText };
constexpr auto EnumNames(DataKind) {
  return std::to_array<std::pair<DataKind, std::string_view>>({{DataKind::kRecall, "recall"},
                                                               {DataKind::kMqar, "mqar"},
                                                               {DataKind::kNeedle, "needle"},
                                                               {DataKind::kText, "text"}});
}

struct DataConfig {
  DataKind kind = DataKind::kText;
  RecallConfig recall;
  MqarConfig mqar;
  NeedleConfig needle;
  TextDataConfig text;

  template <class V>
  void Fields(V& v) {
    v("kind", kind,
      "recall: a stored pair is asked for after a gap; mqar: many pairs, each asked for once; needle: a sentence "
      "hidden in a "
      "long text; text: files");
    v("recall", recall, "options of kind recall");
    v("mqar", mqar, "options of kind mqar");
    v("needle", needle, "options of kind needle");
    v("text", text, "options of kind text; kind needle takes its haystacks from there");
  }
};

// The rows of a synthetic task, as its options alone tell them.
struct TaskShape {
  int64_t vocab_size = 0;
  int64_t length = 0;  // tokens of a row
  double answers = 0;  // tokens of a row that have a target: the mean over rows
};
// Empty for text.
std::optional<TaskShape> TaskShapeOf(const DataConfig& config);
// The options of the config's task; of text, nothing is checked before it is read.
Status ValidateTask(const DataConfig& config);

struct SourceOptions {
  uint64_t seed = 0;
  int64_t length = 0;          // tokens of a row of text; tasks have their own
  int64_t rows_per_batch = 1;  // of the global batch
  bool consecutive = false;    // rows that go on from step to step; text only
  Progress progress = {};
};

// *tokenizer_out becomes the tokenizer of the text, null for tasks of tokens alone; give nullptr if it is not wanted.
Result<std::unique_ptr<BatchSource>> MakeSource(const DataConfig& config, const SourceOptions& options,
                                                std::shared_ptr<const Tokenizer>* tokenizer_out);

}  // namespace tensorcache::data
