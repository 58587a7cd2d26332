#include <algorithm>
#include <string>

#include "core/config.h"
#include "methods/method.h"
#include "runtime/model_impl.h"
#include "runtime/state_size.h"
#include "server/service.h"

namespace tensorcache::server {
namespace {

// What a layer's memory has learned, such as its half-lives: a row for each timescale, a number for each head.
OrderedJson MemoryJson(const Model& model, int64_t layer) {
  const ModelConfig& config = model.config();
  const methods::LayerPlace place = methods::PlaceOf(config, layer);
  const LearnedNumbers& numbers = model.impl().weights.memories[static_cast<size_t>(layer)];
  OrderedJson json = OrderedJson::object();
  for (const methods::LearnedFigure& figure : methods::MethodOf(config.cache).Figures(place, numbers)) {
    std::string name = figure.name;
    std::ranges::replace(name, '-', '_');
    json[name] = figure.rows;
  }
  return json;
}

}  // namespace

OrderedJson PropsJson(const Model& model, const Tokenizer& tokenizer) {
  const ModelConfig& config = model.config();
  const methods::Method& method = methods::MethodOf(config.cache);
  const TwoLevelCacheConfig cache = runtime::CacheConfigOf(config, model.options().ring);
  const bool grows = method.KeepsEverything();
  OrderedJson json = {{"parameters", model.info().parameters},
                      {"vocab_size", config.vocab_size},
                      {"layers", config.num_hidden_layers},
                      {"tokenizer", tokenizer.kind()},
                      {"weights", NameOf(model.options().weights)},
                      {"ring", NameOf(model.options().ring)},
                      {"method", method.name()},
                      {"window", grows ? OrderedJson(nullptr) : OrderedJson(config.cache.window)},
                      {"state_grows", grows},
                      {"state_bytes", runtime::StateBytesAfter(cache, grows ? 1024 : int64_t{1} << 40).total()}};
  if (grows) json["state_bytes_tokens"] = 1024;
  const bool ends = config.position_embedding == PositionKind::kLearned;
  json["max_context"] = ends ? OrderedJson(config.max_position_embeddings) : OrderedJson(nullptr);
  json["memory"] = OrderedJson::array();
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    OrderedJson learned = MemoryJson(model, layer);
    if (!learned.empty()) json["memory"].push_back({{"layer", layer}, {"learned", std::move(learned)}});
  }
  return json;
}

}  // namespace tensorcache::server
