// Training data of any kind, from its config.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>

#include "data/batch.h"
#include "data/corpus.h"
#include "data/recall_task.h"
#include "tensorcache/status.h"
#include "tensorcache/tokenizer.h"

namespace tensorcache::data {

enum class DataKind { kRecall, kText };
constexpr auto EnumNames(DataKind) {
  return std::to_array<std::pair<DataKind, std::string_view>>(
      {{DataKind::kRecall, "recall"}, {DataKind::kText, "text"}});
}

struct DataConfig {
  DataKind kind = DataKind::kText;
  RecallConfig recall;
  TextDataConfig text;

  template <class V>
  void Fields(V& v) {
    v("kind", kind, "recall: synthetic associative recall; text: files");
    v("recall", recall, "options of kind recall");
    v("text", text, "options of kind text");
  }
};

struct SourceOptions {
  uint64_t seed = 0;
  int64_t length = 0;          // tokens of a row of text; recall has its own
  int64_t rows_per_batch = 1;  // of the global batch
  bool consecutive = false;    // rows that go on from step to step; text only
  Progress progress = {};
};

// *tokenizer_out becomes the tokenizer of the text, null for recall; give nullptr if it is not wanted.
Result<std::unique_ptr<BatchSource>> MakeSource(const DataConfig& config, const SourceOptions& options,
                                                std::shared_ptr<const Tokenizer>* tokenizer_out);

}  // namespace tensorcache::data
