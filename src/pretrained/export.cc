#include "pretrained/export.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "core/config.h"
#include "core/text.h"
#include "methods/method.h"
#include "pretrained/hf_config.h"
#include "pretrained/hf_tensors.h"
#include "pretrained/model_folder.h"
#include "pretrained/tensor_problems.h"
#include "pretrained/tokenizer_files.h"
#include "tensorcache/config.h"

namespace tensorcache::pretrained {
namespace {

namespace fs = std::filesystem;

// Puts our tensors into a writer under their names.
class HfExport {
 public:
  HfExport(const SafetensorsFile& file, HfFamily family, bool drop_memory)
      : file_(file), family_(family), drop_memory_(drop_memory) {}

  Status Run(const std::string& source, const ModelConfig& config, SafetensorsWriter* writer, ExportReport* report) {
    for (const HfTensor& tensor : HfTensors(family_, config)) {
      std::vector<TensorRef> parts;
      for (const OurTensor& part : tensor.parts) {
        used_.insert(part.name);
        const auto found = file_.Find(part.name);
        if (!found.ok()) {
          problems_.AddMissing(part.name);
        } else if (problems_.Check(part.name, *found, part.shape)) {
          parts.push_back(*found);
        }
      }
      if (parts.size() == tensor.parts.size()) TC_RETURN_IF_ERROR(Add(tensor, std::move(parts), writer));
    }
    for (const std::string_view name : file_.names()) {
      if (used_.contains(name)) continue;
      if (drop_memory_ && methods::IsOfMethod(name)) {
        ++report->dropped;
      } else {
        problems_.AddSurplus(name);
      }
    }
    return problems_.Finish(source);
  }

 private:
  Status Add(const HfTensor& tensor, std::vector<TensorRef> parts, SafetensorsWriter* writer) const {
    const DType dtype = parts.front().dtype;
    const std::string name = tensor.has_prefix ? std::string(InfoOf(family_).prefix) + tensor.name : tensor.name;
    if (std::ranges::any_of(parts, [&](const TensorRef& part) { return part.dtype != dtype; })) {
      return Unsupported(
          fmt::format("the parts of {} are of different types; they would have to be one tensor", Quoted(name)));
    }
    if (tensor.IsSame()) {
      writer->Add(name, dtype, tensor.Shape(), parts.front().data.data());
      return OkStatus();
    }
    writer->AddMade(name, dtype, tensor.Shape(), [tensor, parts = std::move(parts)](std::span<std::byte> out) {
      for (size_t i = 0; i < parts.size(); ++i) {
        CopyPart(tensor, i, DTypeBytes(parts[i].dtype), CopyTo::kTheirs, const_cast<std::byte*>(parts[i].data.data()),
                 out.data());  // the first is only read
      }
    });
    return OkStatus();
  }

  const SafetensorsFile& file_;
  HfFamily family_;
  bool drop_memory_;
  std::set<std::string, std::less<>> used_;
  TensorProblems problems_;
};

Result<ModelConfig> ReadOurConfig(const std::string& folder) {
  const std::string path = (fs::path(folder) / kConfigFile).string();
  TC_ASSIGN_OR_RETURN(const Json json, ReadJsonFile(path));
  if (json.is_object() && json.contains("architectures")) {
    return InvalidArgument(
        fmt::format("{}: this is a model of Hugging Face already, not a checkpoint of tensorcache", path));
  }
  ModelConfig config;
  Status status = ParseConfig(json, &config);
  if (status.ok()) status = ValidateModelConfig(config);
  if (!status.ok()) return Status(status.code(), fmt::format("{}: {}", path, status.message()));
  return config;
}

// What is exported of a model with a memory.
void DropMemory(ModelConfig* config, ExportReport* report) {
  if (!methods::MethodOf(config->cache).MemoryCanBeDropped()) return;
  config->cache.method = CacheMethod::kWindow;
  report->notes.push_back(
      fmt::format("the memory is lost: what is exported sees {} tokens and nothing before", config->cache.window));
}

}  // namespace

Result<ExportReport> ExportModel(const ExportOptions& options) {
  ExportReport report;
  TC_RETURN_IF_ERROR(CheckModelFolder(options.out, options.model, options.force));
  TC_ASSIGN_OR_RETURN(ModelConfig config, ReadOurConfig(options.model));
  const std::string path = (fs::path(options.model) / kModelFile).string();
  TC_ASSIGN_OR_RETURN(const SafetensorsFile file, SafetensorsFile::Open(path));
  if (options.drop_memory) DropMemory(&config, &report);
  const auto family = HfFamilyOf(config);
  if (!family.ok()) {
    return Status(family.status().code(), fmt::format("{}: {}", options.model, family.status().message()));
  }
  SafetensorsWriter writer;
  writer.SetMetadata("format", "pt");  // transformers refuses files without it
  TC_RETURN_IF_ERROR(HfExport(file, *family, options.drop_memory).Run(path, config, &writer, &report));
  TC_ASSIGN_OR_RETURN(TokenizerFiles tokenizer, TokenizerFilesOf(options.model));
  if (tokenizer.tokenizer == nullptr) report.notes.push_back(tokenizer.problem);
  TC_RETURN_IF_ERROR(MakeHfTokenizerFiles(&tokenizer, &report.notes));
  TC_ASSIGN_OR_RETURN(const TensorRef embedding, file.Find("model.embed_tokens.weight"));
  const OrderedJson json = WriteHfConfig(*family, config, HfTokensOf(tokenizer), embedding.dtype);
  report.architecture = InfoOf(*family).architecture;
  report.tensors = std::ssize(HfTensors(*family, config));
  report.bytes = writer.data_bytes();
  TC_RETURN_IF_ERROR(WriteModelFolder({.path = options.out,
                                       .source = options.model,
                                       .force = options.force,
                                       .config = JsonText(json),
                                       .tensors = writer,
                                       .files = tokenizer.files,
                                       .progress = options.progress}));
  return report;
}

}  // namespace tensorcache::pretrained
