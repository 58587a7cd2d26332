// The Python class Model.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "tensorcache/model.h"
#include "tensorcache/tokenizer.h"

namespace tensorcache::python {

// What a model is made of, and made of again by pickle.
struct ModelSource {
  std::string folder;     // "": random weights
  std::string tokenizer;  // "": that of the folder
  std::string config;     // JSON, of random weights
  ModelOptions options;
  uint64_t seed = 0;
};

class ModelObject {
 public:
  // Needs no GIL.
  explicit ModelObject(ModelSource source);

  const std::shared_ptr<const Model>& model() const { return model_; }
  const ModelSource& source() const { return source_; }
  // Null if there is none. Read when first asked for.
  std::shared_ptr<const Tokenizer> tokenizer() const;
  std::string tokenizer_source() const { return source_.tokenizer.empty() ? source_.folder : source_.tokenizer; }

 private:
  ModelSource source_;
  std::shared_ptr<const Model> model_;
  mutable std::mutex mutex_;
  mutable std::optional<std::shared_ptr<const Tokenizer>> tokenizer_;
};

}  // namespace tensorcache::python
