#include "pretrained/hf_checkpoint.h"

#include <fmt/format.h>

#include <filesystem>
#include <set>
#include <system_error>

#include "core/json.h"
#include "core/text.h"
#include "pretrained/model_folder.h"

namespace tensorcache::pretrained {
namespace {

namespace fs = std::filesystem;

constexpr char kIndexFile[] = "model.safetensors.index.json";

Status NoWeights(const std::string& folder) {
  for (const char* name : {"pytorch_model.bin", "pytorch_model.bin.index.json", "consolidated.00.pth", "model.pth",
                           "tf_model.h5", "flax_model.msgpack"}) {
    if (!Exists(fs::path(folder) / name)) continue;
    return Unsupported(
        fmt::format("{}: the weights are in {} alone; convert them to safetensors first (in Python: "
                    "transformers.AutoModelForCausalLM.from_pretrained(FOLDER).save_pretrained(NEW_FOLDER))",
                    folder, name));
  }
  return NotFound(fmt::format("{}: there is neither {} nor {}", folder, kModelFile, kIndexFile));
}

// Which file each tensor is in. File names are names, not paths to elsewhere.
Result<std::map<std::string, std::string>> ReadIndex(const std::string& path) {
  TC_ASSIGN_OR_RETURN(const Json json, ReadJsonFile(path));
  const auto map = json.is_object() ? json.find("weight_map") : json.end();
  if (map == json.end() || !map->is_object() || map->empty()) {
    return Corrupt(path + ": there is no object 'weight_map' with the files of the tensors");
  }
  std::map<std::string, std::string> files;
  for (const auto& [tensor, file] : map->items()) {
    const std::string name = file.is_string() ? file.get<std::string>() : "";
    if (name.empty() || fs::path(name).filename() != name || !name.ends_with(".safetensors")) {
      return Corrupt(fmt::format("{}: the file of tensor {} is {}, which is not the name of a .safetensors file", path,
                                 Quoted(tensor), Quoted(name)));
    }
    files.emplace(tensor, name);
  }
  return files;
}

}  // namespace

Status HfCheckpoint::AddShard(const std::string& folder, const std::string& file) {
  const std::string path = (fs::path(folder) / file).string();
  TC_ASSIGN_OR_RETURN(SafetensorsFile opened, SafetensorsFile::Open(path));
  files_.push_back(std::move(opened));
  for (const std::string_view name : files_.back().names()) {
    TC_ASSIGN_OR_RETURN(const TensorRef tensor, files_.back().Find(name));
    if (!tensors_.emplace(name, tensor).second) {
      return Corrupt(fmt::format("{}: tensor {} is in another shard, too", path, Quoted(name)));
    }
  }
  return OkStatus();
}

Result<HfCheckpoint> HfCheckpoint::Open(const std::string& folder) {
  HfCheckpoint checkpoint;
  if (Exists(fs::path(folder) / kModelFile)) {
    TC_RETURN_IF_ERROR(checkpoint.AddShard(folder, kModelFile));
    return checkpoint;
  }
  const std::string index_path = (fs::path(folder) / kIndexFile).string();
  if (!Exists(index_path)) return NoWeights(folder);
  TC_ASSIGN_OR_RETURN(const auto index, ReadIndex(index_path));
  std::set<std::string> files;
  for (const auto& [tensor, file] : index) files.insert(file);
  checkpoint.files_.reserve(files.size());
  for (const std::string& file : files) TC_RETURN_IF_ERROR(checkpoint.AddShard(folder, file));
  for (const auto& [tensor, file] : index) {
    if (checkpoint.Find(tensor) == nullptr) {
      return Corrupt(fmt::format("{}: tensor {} is not in {}", index_path, Quoted(tensor), file));
    }
  }
  return checkpoint;
}

const TensorRef* HfCheckpoint::Find(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

}  // namespace tensorcache::pretrained
