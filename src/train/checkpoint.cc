#include "train/checkpoint.h"

#include <fmt/format.h>

#include <filesystem>
#include <set>

#include "core/config.h"
#include "core/file.h"
#include "core/safetensors.h"
#include "core/tensor_floats.h"

namespace tensorcache::train {
namespace {

constexpr char kFormatKey[] = "format";
constexpr char kTrainStateFormat[] = "tensorcache train state 1";

// The tensors on the CPU, contiguous float32, alive until the file is written.
class TensorWriter {
 public:
  void Add(const StoredParameter& parameter) {
    kept_.push_back(parameter.tensor.detach().to(at::kCPU, at::kFloat).contiguous());
    writer_.Add(parameter.name, kept_.back().sizes().vec(), kept_.back().const_data_ptr<float>());
  }
  SafetensorsWriter& writer() { return writer_; }

 private:
  SafetensorsWriter writer_;
  std::vector<Tensor> kept_;
};

Status CopyInto(const SafetensorsFile& file, const std::string& name, const Tensor& target) {
  TC_ASSIGN_OR_RETURN(TensorRef stored, file.Find(name));
  TC_ASSIGN_OR_RETURN(stored, file.Find(name, stored.dtype, target.sizes()));
  TC_RETURN_IF_ERROR(CheckIsFloat(name, stored));
  const at::NoGradGuard no_grad;
  Tensor values = at::empty(target.sizes(), at::kFloat);
  ReadFloats(stored, 0, values.numel(), values.mutable_data_ptr<float>());
  target.copy_(values);
  return OkStatus();
}

}  // namespace

std::string PathIn(const std::string& folder, const char* file) {
  return (std::filesystem::path(folder) / file).string();
}

Status SaveModel(const Model& model, const std::string& folder) {
  TensorWriter tensors;
  for (const StoredParameter& parameter : StoredParameters(model.config(), Merged(model.parameters()))) {
    tensors.Add(parameter);
  }
  tensors.writer().SetMetadata(kFormatKey, "pt");
  TC_RETURN_IF_ERROR(tensors.writer().Write(PathIn(folder, kModelFile)));
  return WriteFileAtomically(PathIn(folder, kConfigFile), JsonText(ToJson(model.config())));
}

Status LoadParameters(const std::string& folder, const Model& model, Memories memories) {
  const std::string path = PathIn(folder, kModelFile);
  TC_ASSIGN_OR_RETURN(const SafetensorsFile file, SafetensorsFile::Open(path));
  std::set<std::string_view> surplus(file.names().begin(), file.names().end());
  for (const StoredParameter& parameter : StoredParameters(model.config(), model.parameters())) {
    if (memories == Memories::kMayDiffer && methods::IsOfMethod(parameter.name) && !surplus.contains(parameter.name))
      continue;
    TC_RETURN_IF_ERROR(CopyInto(file, parameter.name, parameter.tensor));
    surplus.erase(parameter.name);
  }
  if (memories == Memories::kMayDiffer) {
    std::erase_if(surplus, [](std::string_view name) { return methods::IsOfMethod(name); });
  }
  if (surplus.empty()) return OkStatus();
  return InvalidArgument(fmt::format("{}: has {} tensor{} that this config does not know, such as '{}'", path,
                                     surplus.size(), surplus.size() == 1 ? "" : "s", *surplus.begin()));
}

Result<Model> LoadModel(const std::string& folder, at::Device device) {
  ModelConfig config;
  TC_RETURN_IF_ERROR(ReadConfigFile(PathIn(folder, kConfigFile), &config));
  TC_ASSIGN_OR_RETURN(Model model, Model::Create(config, {}, device));
  TC_RETURN_IF_ERROR(LoadParameters(folder, model));
  return model;
}

Status SaveTrainState(const TrainState& state, const std::string& folder) {
  TensorWriter tensors;
  for (const StoredParameter& parameter : state.tensors) tensors.Add(parameter);
  tensors.writer().SetMetadata(kFormatKey, kTrainStateFormat);
  for (const auto& [key, text] : state.texts) tensors.writer().SetMetadata(key, text);
  return tensors.writer().Write(PathIn(folder, kTrainStateFile));
}

Result<TrainState> LoadTrainState(const std::string& folder) {
  const std::string path = PathIn(folder, kTrainStateFile);
  if (!Exists(path)) {
    return NotFound(
        fmt::format("{}: there is no training to resume in this folder ({} is missing)", folder, kTrainStateFile));
  }
  TC_ASSIGN_OR_RETURN(const SafetensorsFile file, SafetensorsFile::Open(path));
  const auto format = file.metadata().find(kFormatKey);
  if (format == file.metadata().end() || format->second != kTrainStateFormat) {
    return Corrupt(fmt::format("{}: not a training state of this program", path));
  }
  TrainState state{.texts = file.metadata()};
  for (const std::string_view name : file.names()) {
    TC_ASSIGN_OR_RETURN(const TensorRef stored, file.Find(name));
    Tensor tensor = at::empty(at::IntArrayRef(stored.shape.data(), stored.shape.size()), at::kFloat);
    TC_RETURN_IF_ERROR(CopyInto(file, std::string(name), tensor));
    state.tensors.push_back({std::string(name), tensor});
  }
  return state;
}

}  // namespace tensorcache::train
