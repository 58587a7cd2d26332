#include "methods/method.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/check.h"
#include "methods/head.h"

namespace tensorcache::methods {

// The table of methods, in the order of CacheMethod. X(Name): the folder of the method defines `const Method& NameMethod()`.
#define TENSORCACHE_METHODS(X) \
  X(Full)                      \
  X(Window)                    \
  X(StreamingLlm)              \
  X(Infini)                    \
  X(TensorCache)

#define TENSORCACHE_DECLARE(Name) const Method& Name##Method();
TENSORCACHE_METHODS(TENSORCACHE_DECLARE)
#undef TENSORCACHE_DECLARE

namespace {

std::vector<const Method*>& Table() {
#define TENSORCACHE_ENTRY(Name) &Name##Method(),
  static std::vector<const Method*> table = {TENSORCACHE_METHODS(TENSORCACHE_ENTRY)};
#undef TENSORCACHE_ENTRY
  return table;
}

int64_t Product(const std::vector<int64_t>& shape) {
  int64_t product = 1;
  for (const int64_t size : shape) product *= size;
  return product;
}

}  // namespace

const Method* FindMethod(CacheMethod method) {
  const auto index = static_cast<size_t>(method);
  return index < Table().size() ? Table()[index] : nullptr;
}

const Method& MethodOf(const CacheConfig& cache) {
  const Method* method = FindMethod(cache.method);
  TC_CHECK(method != nullptr);
  return *method;
}

CacheMethod AddMethod(const Method& method) {
  Table().push_back(&method);
  return static_cast<CacheMethod>(Table().size() - 1);
}

LayerPlace PlaceOf(const ModelConfig& config, int64_t layer) {
  return {.cache = config.cache,
          .layer = layer,
          .layers = config.num_hidden_layers,
          .query_heads = config.num_attention_heads,
          .kv_heads = config.num_key_value_heads,
          .head_dim = config.HeadDim(),
          .hidden_size = config.hidden_size};
}

LayerPlace PlaceOf(const TwoLevelCacheConfig& config, int64_t layer) {
  return {.cache = config.cache,
          .layer = layer,
          .layers = config.layers,
          .query_heads = config.query_heads,
          .kv_heads = config.kv_heads,
          .head_dim = config.head_dim};
}

int64_t StateArray::size() const { return Product(shape); }
int64_t LearnedTensor::size() const { return Product(shape); }

std::string TensorName(const Method& method, int64_t layer, const LearnedTensor& tensor) {
  return fmt::format("model.layers.{}.self_attn.{}.{}", layer, method.name(), tensor.name);
}

bool IsOfMethod(std::string_view tensor_name) {
  return std::any_of(Table().begin(), Table().end(), [&](const Method* method) {
    return tensor_name.find(fmt::format(".self_attn.{}.", method->name())) != tensor_name.npos;
  });
}

LearnedTensor TensorOf(const Method& method, const LayerPlace& place, std::string_view name) {
  std::vector<LearnedTensor> tensors = method.Tensors(place);
  const auto found = std::find_if(tensors.begin(), tensors.end(), [&](const auto& t) { return t.name == name; });
  TC_CHECK(found != tensors.end());
  return std::move(*found);
}

Result<std::vector<double>> NumbersOf(const LearnedTensor& tensor, const LearnedNumbers& numbers) {
  const auto found = numbers.find(tensor.name);
  std::vector<double> values(static_cast<size_t>(tensor.size()));
  if (found != numbers.end() && !found->second.empty()) {
    if (found->second.size() != values.size()) {
      return InvalidArgument(
          fmt::format("{} has {} numbers; this cache needs {}", tensor.name, found->second.size(), values.size()));
    }
    std::copy(found->second.begin(), found->second.end(), values.begin());
    return values;
  }
  if (tensor.values.empty()) {
    return InvalidArgument(fmt::format("{} has 0 numbers; this cache needs {}", tensor.name, values.size()));
  }
  for (size_t i = 0; i < values.size(); ++i) values[i] = tensor.values[i % tensor.values.size()];
  return values;
}

// ----- defaults: a plain window --------------------------------------------------------------------------------------

Status Method::Validate(const CacheConfig& cache, int64_t /*layers*/) const {
  return CheckPositive("cache.window", cache.window, int64_t{1} << 40);
}

Status Method::ValidateLearnedPositions() const { return OkStatus(); }

// Carried rows must be alike: what they keep is full after one block.
Status Method::ValidateCarriedState(const CacheConfig& cache, int64_t block) const {
  if (block >= TokensKept(cache)) return OkStatus();
  return InvalidArgument(
      fmt::format("train.carry_state needs blocks of at least the {} tokens that the cache keeps; they have {} "
                  "(train.block, or max_position_embeddings)",
                  TokensKept(cache), block));
}

double Method::VisiblePairs(const CacheConfig& cache, double tokens) const {
  const double W = std::min<double>(static_cast<double>(cache.window), tokens);
  return W * (W + 1) / 2 + (tokens - W) * W;
}

std::vector<LearnedFigure> Method::Figures(const LayerPlace& /*place*/, const LearnedNumbers& /*numbers*/) const {
  return {};
}

Result<std::unique_ptr<const Layer>> Method::MakeLayer(const TwoLevelCacheConfig& /*config*/, int64_t /*layer*/,
                                                       const LearnedNumbers& /*numbers*/) const {
  return std::unique_ptr<const Layer>(std::make_unique<Layer>());
}

Result<std::unique_ptr<const Fusion>> Method::MakeFusion(const LayerPlace& /*place*/,
                                                         const LearnedNumbers& /*numbers*/) const {
  return std::unique_ptr<const Fusion>(std::make_unique<Fusion>());
}

Status Layer::Step(const HeadBlock& /*block*/, const EvictedPair& /*evicted*/, Arena& /*arena*/) const {
  return OkStatus();
}

Status Layer::Scan(const HeadBlock& /*block*/, const PastWindow& /*past*/, Arena& /*arena*/) const {
  return OkStatus();
}

}  // namespace tensorcache::methods

namespace tensorcache {

std::vector<std::pair<CacheMethod, std::string_view>> EnumNames(CacheMethod) {
  std::vector<std::pair<CacheMethod, std::string_view>> names;
  for (const methods::Method* method : methods::Table()) {
    names.emplace_back(static_cast<CacheMethod>(names.size()), method->name());
  }
  return names;
}

}  // namespace tensorcache
