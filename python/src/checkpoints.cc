// Checkpoint folders and what is done with them: info, import_model, export_model, evaluate.
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>
#include <vector>

#include "arguments.h"
#include "model.h"
#include "module.h"
#include "pretrained/export.h"
#include "pretrained/import.h"
#include "runtime/checkpoint.h"
#include "runtime/evaluate.h"

namespace tensorcache::python {
namespace {

using nb::literals::operator""_a;
using std::filesystem::path;

constexpr const char* kEvaluateDoc = R"(How well a model predicts a text that streams by, by length of the context.

For each length L, `starts` positions are drawn, the same for all models; from each, L + 1 tokens go through a fresh session.
Gives a dictionary for each length: the mean negative log-likelihood of the L predicted tokens from each start ("nll"), of the
last half of them ("last_half"), and the bytes of the session's state at the end. `scale_full` lengthens the rotary embedding of
method "full" beyond the trained length, as the paper does.

>>> import tensorcache as tc
>>> scores = tc.evaluate(tc.Model.random({"vocab_size": 8}), [1, 2, 3] * 20, contexts=[16, 32], starts=2)
>>> [(score["context"], len(score["nll"])) for score in scores]
[(16, 2), (32, 2)]
)";

nb::object Info(const path& folder) {
  OrderedJson json;
  {
    const nb::gil_scoped_release release;
    json = runtime::CheckpointInfoJson(Unwrap(runtime::ReadCheckpointInfo(folder.string())));
  }
  return FromJson(json);
}

nb::object Import(const path& source, const path& out, const std::optional<path>& tokenizer, bool force) {
  OrderedJson json;
  {
    const nb::gil_scoped_release release;
    const pretrained::ImportReport report =
        Unwrap(pretrained::ImportModel({.from = source.string(),
                                        .out = out.string(),
                                        .tokenizer = tokenizer ? tokenizer->string() : "",
                                        .force = force}));
    json = {{"architecture", report.architecture},
            {"tensors", report.tensors},
            {"parameters", report.parameters},
            {"bytes", report.bytes},
            {"tokenizer", report.tokenizer},
            {"tokenizer_tokens", report.tokenizer_tokens},
            {"notes", report.notes},
            {"config", ToJson(report.config)}};
  }
  return FromJson(json);
}

nb::object Export(const path& model, const path& out, bool force, bool drop_memory) {
  OrderedJson json;
  {
    const nb::gil_scoped_release release;
    const pretrained::ExportReport report = Unwrap(pretrained::ExportModel(
        {.model = model.string(), .out = out.string(), .force = force, .drop_memory = drop_memory}));
    json = {{"architecture", report.architecture},
            {"tensors", report.tensors},
            {"bytes", report.bytes},
            {"dropped", report.dropped},
            {"notes", report.notes}};
  }
  return FromJson(json);
}

nb::object EvaluateModel(const ModelObject& model, nb::handle tokens, std::vector<int64_t> contexts, int64_t starts,
                         uint64_t seed, bool scale_full) {
  const Tokens numbers(tokens);
  OrderedJson json = OrderedJson::array();
  {
    const nb::gil_scoped_release release;
    const EvaluationOptions options{
        .contexts = std::move(contexts), .starts = starts, .seed = seed, .scale_full = scale_full};
    for (const ContextScore& score : Unwrap(Evaluate(model.model(), TextOf(numbers.view()), options))) {
      std::vector<int64_t> at;
      for (const StreamScore& stream : score.streams) at.push_back(stream.start);
      json.push_back({{"context", score.context},
                      {"starts", at},
                      {"nll", score.Nll()},
                      {"last_half", score.LastHalf()},
                      {"state_bytes", score.state_bytes},
                      {"rope_ntk_factor", score.rope_ntk_factor}});
    }
  }
  return FromJson(json);
}

}  // namespace

void BindCheckpoints(nb::module_& module) {
  module.def(
      "info", Info, "folder"_a, nb::sig("def info(folder: str | os.PathLike[str]) -> dict[str, typing.Any]"),
      "What a checkpoint is: sizes, config, tokenizer, what each layer's memory has learned, and the bytes of a\n"
      "session of each method after 1K to 1M tokens. `tensorcache info --json` writes the same.");
  module.def(
      "import_model", Import, "source"_a, "out"_a, nb::kw_only(), "tokenizer"_a = nb::none(), "force"_a = false,
      nb::sig("def import_model(source: str | os.PathLike[str], out: str | os.PathLike[str], *, tokenizer: str | "
              "os.PathLike[str] | None = None, force: bool = False) -> dict[str, typing.Any]"),
      "Makes a checkpoint folder `out` of a Hugging Face folder (Llama, Mistral, Qwen 2, GPT-2) or a llama2.c file,\n"
      "and tells what it was. `tokenizer` is another one than the one beside the model; `force` replaces a model\n"
      "that is in `out`.");
  module.def(
      "export_model", Export, "model"_a, "out"_a, nb::kw_only(), "force"_a = false, "drop_memory"_a = false,
      nb::sig("def export_model(model: str | os.PathLike[str], out: str | os.PathLike[str], *, force: bool = False, "
              "drop_memory: bool = False) -> dict[str, typing.Any]"),
      "Writes a checkpoint as a folder `out` that the package transformers loads. What it has no architecture for,\n"
      "memories above all, is UnsupportedError; `drop_memory` leaves the memory behind and keeps its window.");
  module.def(
      "evaluate", EvaluateModel, "model"_a, "tokens"_a, nb::kw_only(), "contexts"_a, "starts"_a = 4, "seed"_a = 0,
      "scale_full"_a = true,
      nb::sig("def evaluate(model: Model, tokens: collections.abc.Sequence[int] | "
              "numpy.typing.NDArray[numpy.integer], *, contexts: collections.abc.Sequence[int], starts: int = 4, "
              "seed: int = 0, scale_full: bool = True) -> list[dict[str, typing.Any]]"),
      kEvaluateDoc);
}

}  // namespace tensorcache::python
