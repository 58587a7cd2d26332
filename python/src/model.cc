#include "model.h"

#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <tuple>
#include <utility>

#include "arguments.h"
#include "module.h"
#include "runtime/checkpoint.h"
#include "tokenizer.h"

namespace tensorcache::python {
namespace {

using nb::literals::operator""_a;

constexpr const char* kModelDoc = R"(A trained model, ready to run.

`folder` is a checkpoint folder, as `tensorcache train`, `adapt` and `import` leave it. `weights` is how weight matrices
are kept: "fp32", "bf16" or "int8"; `ring` how the window's keys and values are: "fp32" or "bf16". `threads` work on one call, 0: one
per core. `prefill_block` tokens go through the layers together. `cache` changes keys of the checkpoint's cache:
{"method": "window", "window": 256}. `tokenizer` is another one than the folder's.

Immutable; any number of sessions, on any threads, share one. Loading takes milliseconds: fp32 weights stay in the pages of
the file. A model is pickled as its folder and options, not its weights.

>>> import tensorcache as tc
>>> model = tc.Model.random({"hidden_size": 64, "num_hidden_layers": 2}, tokenizer="bytes", seed=1)
>>> model.config["cache"]["method"]
'tensor_cache'
>>> session = model.session()
>>> session.prefill(model.tokenizer.encode("Hello"))
>>> session.logits.shape
(256,)
)";

constexpr const char* kRandomDoc = R"(A model of random weights in memory, to measure or to test with.

`config` has the keys of a checkpoint's config.json; what is missing has its default.

>>> import tensorcache as tc
>>> tc.Model.random({"vocab_size": 100}).vocab_size
100
)";

ModelOptions OptionsOf(std::string_view weights, std::string_view ring, int threads, int64_t prefill_block) {
  return {.weights = ParseName<WeightType>("weights", weights),
          .ring = ParseName<RingType>("ring", ring),
          .threads = threads,
          .prefill_block = prefill_block};
}

std::shared_ptr<const Model> Make(const ModelSource& source) {
  if (!source.folder.empty()) return Unwrap(runtime::LoadCheckpoint(source.folder, source.options));
  ModelConfig config;
  Check(ParseConfig(Unwrap(ParseJson(source.config, "config")), &config));
  return Unwrap(Model::Random(config, source.options, source.seed));
}

struct LoadArguments {
  std::string folder, tokenizer;
  ModelOptions options;
  nb::object cache;
};

void Load(ModelObject* self, LoadArguments arguments) {
  if (!arguments.cache.is_none()) {
    ModelConfig config = Unwrap(runtime::ReadModelConfig(arguments.folder));
    ReadConfig(arguments.cache, "cache", &config.cache);
    arguments.options.cache = config.cache;
  }
  const nb::gil_scoped_release release;
  new (self) ModelObject(
      {.folder = arguments.folder, .tokenizer = arguments.tokenizer, .config = "", .options = arguments.options});
}

std::unique_ptr<ModelObject> Random(nb::dict config, const std::string& tokenizer, const ModelOptions& options,
                                    uint64_t seed) {
  const std::string text = ToJsonValue(config, "config").dump();
  const nb::gil_scoped_release release;
  return std::make_unique<ModelObject>(
      ModelSource{.folder = "", .tokenizer = tokenizer, .config = text, .options = options, .seed = seed});
}

std::string PathOr(const std::optional<std::filesystem::path>& path) { return path ? path->string() : ""; }

// folder, tokenizer, config, weights, ring, threads, prefill block, cache as JSON or "", seed
using State =
    std::tuple<std::string, std::string, std::string, std::string, std::string, int, int64_t, std::string, uint64_t>;

State StateOf(const ModelObject& self) {
  const ModelSource& source = self.source();
  const ModelOptions& options = source.options;
  return {source.folder,
          source.tokenizer,
          source.config,
          std::string(NameOf(options.weights)),
          std::string(NameOf(options.ring)),
          options.threads,
          options.prefill_block,
          options.cache ? ToJson(*options.cache).dump() : "",
          source.seed};
}

void SetState(ModelObject& self, const State& state) {
  const auto& [folder, tokenizer, config, weights, ring, threads, prefill_block, cache, seed] = state;
  ModelSource source{.folder = folder,
                     .tokenizer = tokenizer,
                     .config = config,
                     .options = OptionsOf(weights, ring, threads, prefill_block),
                     .seed = seed};
  if (!cache.empty()) {
    source.options.cache.emplace();
    Check(ParseConfig(Unwrap(ParseJson(cache, "cache")), &*source.options.cache));
  }
  new (&self) ModelObject(std::move(source));
}

nb::object TokenizerOf(const ModelObject& self) {
  std::shared_ptr<const Tokenizer> tokenizer;
  {
    const nb::gil_scoped_release release;
    tokenizer = self.tokenizer();
  }
  if (tokenizer == nullptr) return nb::none();
  return nb::cast(TokenizerObject{.tokenizer = std::move(tokenizer), .source = self.tokenizer_source()});
}

}  // namespace

ModelObject::ModelObject(ModelSource source) : source_(std::move(source)), model_(Make(source_)) {}

std::shared_ptr<const Tokenizer> ModelObject::tokenizer() const {
  const std::lock_guard lock(mutex_);
  if (!tokenizer_) {
    tokenizer_ = source_.folder.empty() && source_.tokenizer.empty()
                     ? nullptr
                     : Unwrap(runtime::LoadTokenizerOf(*model_, source_.folder, source_.tokenizer));
  }
  return *tokenizer_;
}

nb::class_<ModelObject> BindModel(nb::module_& module) {
  nb::class_<ModelObject> model(module, "Model", kModelDoc);
  model
      .def(
          "__init__",
          [](ModelObject* self, const std::filesystem::path& folder, std::string_view weights, std::string_view ring,
             int threads, int64_t prefill_block, nb::object cache,
             const std::optional<std::filesystem::path>& tokenizer) {
            Load(self, {.folder = folder.string(),
                        .tokenizer = PathOr(tokenizer),
                        .options = OptionsOf(weights, ring, threads, prefill_block),
                        .cache = std::move(cache)});
          },
          "folder"_a, nb::kw_only(), "weights"_a = "fp32", "ring"_a = "fp32", "threads"_a = 0, "prefill_block"_a = 512,
          "cache"_a = nb::none(), "tokenizer"_a = nb::none(),
          nb::sig("def __init__(self, folder: str | os.PathLike[str], *, weights: str = 'fp32', ring: str = 'fp32', "
                  "threads: int = 0, prefill_block: int = 512, cache: dict[str, typing.Any] | None = None, "
                  "tokenizer: str | os.PathLike[str] | None = None) -> None"))
      .def_static(
          "random",
          [](nb::dict config, uint64_t seed, std::string_view weights, std::string_view ring, int threads,
             int64_t prefill_block, const std::optional<std::filesystem::path>& tokenizer) {
            return Random(std::move(config), PathOr(tokenizer), OptionsOf(weights, ring, threads, prefill_block), seed);
          },
          "config"_a, nb::kw_only(), "seed"_a = 0, "weights"_a = "fp32", "ring"_a = "fp32", "threads"_a = 0,
          "prefill_block"_a = 512, "tokenizer"_a = nb::none(),
          nb::sig("def random(config: dict[str, typing.Any], *, seed: int = 0, weights: str = 'fp32', ring: str = "
                  "'fp32', threads: int = 0, prefill_block: int = 512, "
                  "tokenizer: str | os.PathLike[str] | None = None) -> Model"),
          kRandomDoc)
      .def_prop_ro(
          "config", [](const ModelObject& self) { return FromJson(ToJson(self.model()->config())); },
          nb::sig("def config(self) -> dict[str, typing.Any]"), "The model's config, with the cache that it runs with.")
      .def_prop_ro("tokenizer", TokenizerOf, nb::sig("def tokenizer(self) -> Tokenizer | None"),
                   "The tokenizer of the folder, or the one that was named; None if there is none.")
      .def_prop_ro(
          "vocab_size", [](const ModelObject& self) { return self.model()->config().vocab_size; },
          "Tokens of the vocabulary.")
      .def_prop_ro(
          "parameters", [](const ModelObject& self) { return self.model()->info().parameters; },
          "Numbers in the checkpoint that the model uses.")
      .def_prop_ro(
          "weight_bytes", [](const ModelObject& self) { return self.model()->info().weight_bytes; },
          "Bytes of weights that decoding one token reads.")
      .def_prop_ro(
          "threads", [](const ModelObject& self) { return self.model()->threads(); }, "Threads that work on one call.")
      .def_prop_ro(
          "fingerprint", [](const ModelObject& self) { return self.model()->fingerprint(); },
          "Of weights and config: what a saved session belongs to.")
      .def("__getstate__", StateOf)
      .def("__setstate__", SetState)
      .def("__repr__", [](const ModelObject& self) {
        const ModelConfig& config = self.model()->config();
        return "<tensorcache.Model: " + std::to_string(self.model()->info().parameters) + " parameters, " +
               std::string(NameOf(config.cache.method)) + ", window " + std::to_string(config.cache.window) + ">";
      });
  return model;
}

}  // namespace tensorcache::python
