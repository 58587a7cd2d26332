// What tensorcache.torch asks about a model that it trains: its config, what the cache method learns, rotary tables, and checkpoints.
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "arguments.h"
#include "core/model_files.h"
#include "core/safetensors.h"
#include "core/tensor_floats.h"
#include "methods/method.h"
#include "module.h"
#include "pretrained/model_folder.h"
#include "tensorcache/kernels/rope.h"

namespace tensorcache::python {
namespace {

using nb::literals::operator""_a;

ModelConfig ConfigOf(nb::handle dictionary) {
  ModelConfig config;
  ReadConfig(dictionary, "config", &config);
  Check(ValidateModelConfig(config));
  return config;
}

nb::object CompleteConfig(nb::handle dictionary) { return FromJson(ToJson(ConfigOf(dictionary))); }

// Name in checkpoints, shape, initial numbers (again and again; none: random), whether random ones are those of a matrix that adds to
// the residual stream, what they are multiplied by, whether it is trained.
using Learned = std::tuple<std::string, std::vector<int64_t>, std::vector<double>, bool, double, bool>;

std::vector<Learned> LearnedTensors(nb::handle dictionary) {
  const ModelConfig config = ConfigOf(dictionary);
  const methods::Method& method = methods::MethodOf(config.cache);
  std::vector<Learned> tensors;
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    for (const methods::LearnedTensor& tensor : method.Tensors(methods::PlaceOf(config, layer))) {
      tensors.emplace_back(methods::TensorName(method, layer, tensor), tensor.shape, tensor.values,
                           tensor.random == methods::LearnedTensor::Random::kResidual, tensor.random_scale,
                           tensor.learned);
    }
  }
  return tensors;
}

// cos and sin, (tokens, D / 2), of positions 0, 1, ...
std::tuple<nb::object, nb::object> RopeTables(nb::handle dictionary, int64_t tokens) {
  const ModelConfig config = ConfigOf(dictionary);
  if (tokens < 0) throw StatusError(InvalidArgument("a table has 0 tokens or more"));
  const int64_t D = config.HeadDim();
  const RopeFrequencies frequencies =
      Unwrap(MakeRopeFrequencies(D, NtkAwareBase(config.rope_theta, config.rope_ntk_factor, D), config.rope_scaling));
  const std::vector<size_t> shape = {static_cast<size_t>(tokens), static_cast<size_t>(D / 2)};
  const NewArray<float> cos(shape), sin(shape);
  FillRopeTable(frequencies, 0, tokens, cos.view().data(), sin.view().data());
  return {cos.array(), sin.array()};
}

// Name, shape and address of contiguous float32 numbers.
using Stored = std::tuple<std::string, std::vector<int64_t>, uintptr_t>;

void WriteCheckpoint(const std::filesystem::path& folder, nb::handle dictionary, const std::vector<Stored>& tensors,
                     bool force) {
  const ModelConfig config = ConfigOf(dictionary);
  const nb::gil_scoped_release release;
  SafetensorsWriter writer;
  for (const auto& [name, shape, address] : tensors) writer.Add(name, shape, reinterpret_cast<const float*>(address));
  writer.SetMetadata("format", "pt");
  Check(pretrained::CheckModelFolder(folder.string(), "", force));
  Check(pretrained::WriteModelFolder({.path = folder.string(),
                                      .source = "",
                                      .force = force,
                                      .config = JsonText(ToJson(config)),
                                      .tensors = writer,
                                      .files = {},
                                      .progress = {}}));
}

nb::dict ReadCheckpoint(const std::filesystem::path& folder) {
  const SafetensorsFile file = Unwrap(SafetensorsFile::Open((folder / kModelFile).string()));
  nb::dict arrays;
  for (const std::string_view name : file.names()) {
    const TensorRef tensor = Unwrap(file.Find(name));
    Check(CheckIsFloat(std::string(name), tensor));
    const NewArray<float> array(std::vector<size_t>(tensor.shape.begin(), tensor.shape.end()));
    ReadFloats(tensor, 0, static_cast<int64_t>(array.view().size()), array.view().data());
    arrays[nb::str(name.data(), name.size())] = array.array();
  }
  return arrays;
}

}  // namespace

void BindTraining(nb::module_& module) {
  module.def("complete_config", CompleteConfig, "config"_a,
             nb::sig("def complete_config(config: dict[str, typing.Any]) -> dict[str, typing.Any]"),
             "A model's config with every key, checked.");
  module.def("learned_tensors", LearnedTensors, "config"_a,
             nb::sig("def learned_tensors(config: dict[str, typing.Any]) -> "
                     "list[tuple[str, list[int], list[float], bool, float, bool]]"),
             "What the cache method learns: name, shape, initial numbers, residual, scale, trained.");
  module.def("rope_tables", RopeTables, "config"_a, "tokens"_a,
             nb::sig("def rope_tables(config: dict[str, typing.Any], tokens: int) -> "
                     "tuple[numpy.typing.NDArray[numpy.float32], numpy.typing.NDArray[numpy.float32]]"),
             "cos and sin of the rotary embedding.");
  module.def("write_checkpoint", WriteCheckpoint, "folder"_a, "config"_a, "tensors"_a, "force"_a,
             nb::sig("def write_checkpoint(folder: str | os.PathLike[str], config: dict[str, typing.Any], "
                     "tensors: list[tuple[str, list[int], int]], force: bool) -> None"),
             "Writes names, shapes and addresses of tensors as a checkpoint folder.");
  module.def("read_checkpoint", ReadCheckpoint, "folder"_a,
             nb::sig("def read_checkpoint(folder: str | os.PathLike[str]) -> "
                     "dict[str, numpy.typing.NDArray[numpy.float32]]"),
             "The tensors of a checkpoint.");
}

}  // namespace tensorcache::python
