#include "pretrained/import.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <optional>
#include <set>
#include <system_error>

#include "core/config.h"
#include "core/file.h"
#include "core/text.h"
#include "pretrained/hf_checkpoint.h"
#include "pretrained/hf_config.h"
#include "pretrained/hf_tensors.h"
#include "pretrained/llama2c.h"
#include "pretrained/llama2c_tokenizer.h"
#include "pretrained/model_folder.h"
#include "pretrained/tensor_problems.h"
#include "pretrained/tokenizer_files.h"
#include "tokenizer/files.h"

namespace tensorcache::pretrained {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxTokenizerBytes = int64_t{256} << 20;

std::string FolderOf(const std::string& file) {
  const std::string folder = fs::path(file).parent_path().string();
  return folder.empty() ? "." : folder;
}

// Finds the tensors of a Hugging Face folder that the table asks for, and puts them into a writer under our names.
class HfImport {
 public:
  HfImport(const HfCheckpoint& checkpoint, const HfModel& model, std::vector<std::string>* notes)
      : checkpoint_(checkpoint), model_(model), notes_(notes) {
    const std::string_view prefix = InfoOf(model.family).prefix;
    const bool prefixed = std::ranges::any_of(
        checkpoint.tensors(), [&](const auto& tensor) { return std::string_view(tensor.first).starts_with(prefix); });
    if (prefixed) prefix_ = prefix;  // a file of the model without its head has none
  }

  Status Run(const std::string& source, SafetensorsWriter* writer) {
    for (const HfTensor& tensor : HfTensors(model_.family, model_.config)) {
      const std::string name = tensor.has_prefix ? prefix_ + tensor.name : tensor.name;
      const TensorRef* found = Find(tensor, name);
      if (found == nullptr) {
        problems_.AddMissing(name);
      } else if (problems_.Check(name, *found, tensor.Shape())) {
        AddParts(tensor, *found, writer);
      }
    }
    for (const auto& [name, tensor] : checkpoint_.tensors()) {
      if (!used_.contains(name) && !IsBuffer(model_.family, name)) problems_.AddSurplus(name);
    }
    return problems_.Finish(source);
  }

 private:
  // Of tied embeddings, the one or the other may be stored.
  const TensorRef* Find(const HfTensor& tensor, const std::string& name) {
    const TensorRef* found = checkpoint_.Find(name);
    used_.insert(name);
    if (!model_.config.tie_word_embeddings || tensor.name != EmbeddingName(model_.family)) return found;
    const TensorRef* head = checkpoint_.Find(kHeadName);
    used_.insert(std::string(kHeadName));
    if (head == nullptr || found == nullptr) return found == nullptr ? head : found;
    if (head->dtype != found->dtype || !std::ranges::equal(head->data, found->data)) {
      notes_->push_back(fmt::format("config.json ties the embeddings, but {} and {} differ; the first is used for both",
                                    name, kHeadName));
    }
    return found;
  }

  static void AddParts(const HfTensor& tensor, const TensorRef& found, SafetensorsWriter* writer) {
    for (size_t i = 0; i < tensor.parts.size(); ++i) {
      const OurTensor& part = tensor.parts[i];
      if (tensor.IsSame()) {
        writer->Add(part.name, found.dtype, part.shape, found.data.data());
        continue;
      }
      writer->AddMade(part.name, found.dtype, part.shape, [tensor, i, found](std::span<std::byte> out) {
        CopyPart(tensor, i, DTypeBytes(found.dtype), CopyTo::kOurs, out.data(),
                 const_cast<std::byte*>(found.data.data()));  // only read
      });
    }
  }

  const HfCheckpoint& checkpoint_;
  const HfModel& model_;
  std::vector<std::string>* notes_;
  std::string prefix_;
  std::set<std::string, std::less<>> used_;
  TensorProblems problems_;
};

// llama2.c's own kind of file, or any that we read.
Result<TokenizerFiles> ReadLlama2cTokenizer(const std::string& path, int64_t vocab_size) {
  if (!path.ends_with(".bin")) return TokenizerFilesNamed(path);
  TC_ASSIGN_OR_RETURN(const std::string bytes, ReadWholeFile(path, kMaxTokenizerBytes));
  const auto model = ConvertLlama2cTokenizer(bytes, vocab_size);
  if (!model.ok()) return Status(model.status().code(), fmt::format("{}: {}", path, model.status().message()));
  TokenizerFiles files;
  files.files.push_back({.name = std::string(tokenizer::kTokenizerModel), .content = *model});
  return files;
}

// Beside a llama2.c model: its own files, then those of the model that it was made from.
Result<TokenizerFiles> FindLlama2cTokenizer(const std::string& folder, int64_t vocab_size) {
  for (const std::string& name : {fmt::format("tok{}.bin", vocab_size), std::string("tokenizer.bin")}) {
    const std::string path = (fs::path(folder) / name).string();
    if (Exists(path)) return ReadLlama2cTokenizer(path, vocab_size);
  }
  if (!tokenizer::TokenizerFileIn(folder).empty()) return TokenizerFilesOf(folder);
  TokenizerFiles none;
  none.problem = fmt::format("there is neither tokenizer.bin nor tok{}.bin beside the model; name one with --tokenizer",
                             vocab_size);
  return none;
}

bool IsModelBin(const fs::path& path) {
  const std::string name = path.filename().string();
  return name.ends_with(".bin") && !name.starts_with("tok") && !name.starts_with("pytorch_model") &&
         !name.starts_with("training_args") && !name.starts_with("optimizer");
}

// The only model of llama2.c in a folder.
Result<std::string> FindModelBin(const std::string& folder) {
  std::vector<std::string> found;
  std::error_code error;
  bool has_torch = false;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (IsModelBin(it->path())) found.push_back(it->path().string());
    has_torch |= it->path().filename().string().starts_with("pytorch_model");
  }
  if (error) return IoError(fmt::format("cannot read the folder {}: {}", Quoted(folder), error.message()));
  if (found.size() == 1) return found.front();
  std::ranges::sort(found);
  if (found.size() > 1) {
    return InvalidArgument(fmt::format("{}: there are several models of llama2.c, such as {} and {}; name one", folder,
                                       fs::path(found[0]).filename().string(), fs::path(found[1]).filename().string()));
  }
  return NotFound(fmt::format("{}: there is no config.json{}", folder,
                              has_torch ? "; a Hugging Face model needs it" : ", nor a model of llama2.c (.bin)"));
}

class Import {
 public:
  explicit Import(const ImportOptions& options) : options_(options) {}

  Result<ImportReport> Run() {
    if (!Exists(options_.from)) return NotFound(fmt::format("there is no {}", Quoted(options_.from)));
    if (IsFolder(options_.from)) {
      if (Exists(fs::path(options_.from) / kConfigFile)) return RunHf();
      TC_ASSIGN_OR_RETURN(const std::string file, FindModelBin(options_.from));
      return RunLlama2c(file);
    }
    if (options_.from.ends_with(".bin")) {
      if (IsModelBin(options_.from)) return RunLlama2c(options_.from);
      return InvalidArgument(
          fmt::format("{} is not a model of llama2.c; name the folder of a Hugging Face model", Quoted(options_.from)));
    }
    return InvalidArgument(
        fmt::format("--from {}: name the folder of a Hugging Face model, or the .bin file of a llama2.c model",
                    Quoted(options_.from)));
  }

 private:
  Result<ImportReport> RunHf() {
    const std::string& folder = options_.from;
    TC_RETURN_IF_ERROR(CheckModelFolder(options_.out, folder, options_.force));
    const std::string config_path = (fs::path(folder) / kConfigFile).string();
    TC_ASSIGN_OR_RETURN(const Json json, ReadJsonFile(config_path));
    const auto model = ReadHfConfig(json);
    if (!model.ok()) return Status(model.status().code(), fmt::format("{}: {}", config_path, model.status().message()));
    TC_ASSIGN_OR_RETURN(const HfCheckpoint checkpoint, HfCheckpoint::Open(folder));
    report_.architecture = InfoOf(model->family).architecture;
    report_.config = model->config;
    report_.notes = model->notes;
    SafetensorsWriter writer;
    TC_RETURN_IF_ERROR(HfImport(checkpoint, *model, &report_.notes).Run(folder, &writer));
    for (const HfTensor& tensor : HfTensors(model->family, model->config)) {
      for (const OurTensor& part : tensor.parts) CountTensor(part.shape);
    }
    TC_ASSIGN_OR_RETURN(TokenizerFiles tokenizer, options_.tokenizer.empty() ? TokenizerFilesOf(folder)
                                                                             : TokenizerFilesNamed(options_.tokenizer));
    return Write(folder, writer, tokenizer);
  }

  Result<ImportReport> RunLlama2c(const std::string& file) {
    TC_RETURN_IF_ERROR(CheckModelFolder(options_.out, FolderOf(file), options_.force));
    TC_ASSIGN_OR_RETURN(const Llama2cModel model, OpenLlama2c(file));
    report_.architecture = "llama2.c";
    report_.config = model.config;
    SafetensorsWriter writer;
    for (const StoredTensor& tensor : model.tensors) {
      writer.Add(tensor.name, tensor.dtype, tensor.shape, tensor.data.data());
      CountTensor(tensor.shape);
    }
    const int64_t vocab_size = model.config.vocab_size;
    TC_ASSIGN_OR_RETURN(TokenizerFiles tokenizer, options_.tokenizer.empty()
                                                      ? FindLlama2cTokenizer(FolderOf(file), vocab_size)
                                                      : ReadLlama2cTokenizer(options_.tokenizer, vocab_size));
    return Write(FolderOf(file), writer, tokenizer);
  }

  void CountTensor(const std::vector<int64_t>& shape) {
    int64_t numbers = 1;
    for (const int64_t size : shape) numbers *= size;
    report_.parameters += numbers;
    ++report_.tensors;
  }

  Result<ImportReport> Write(const std::string& source, const SafetensorsWriter& writer,
                             const TokenizerFiles& tokenizer) {
    report_.bytes = writer.data_bytes();
    TC_RETURN_IF_ERROR(WriteModelFolder({.path = options_.out,
                                         .source = source,
                                         .force = options_.force,
                                         .config = JsonText(ToJson(report_.config)),
                                         .tensors = writer,
                                         .files = tokenizer.files,
                                         .progress = options_.progress}));
    TellTokenizer(tokenizer);
    return std::move(report_);
  }

  void TellTokenizer(const TokenizerFiles& files) {
    std::string problem = files.problem;
    std::shared_ptr<const Tokenizer> tokenizer;
    if (problem.empty()) {
      auto loaded = LoadTokenizer(options_.out);  // as everybody will
      if (loaded.ok()) {
        tokenizer = std::move(loaded).value();
      } else {
        problem = loaded.status().message();
      }
    }
    if (tokenizer == nullptr) {
      report_.notes.push_back(fmt::format("no tokenizer that can be used, so texts are token numbers: {}", problem));
      return;
    }
    report_.tokenizer = tokenizer->kind();
    report_.tokenizer_tokens = tokenizer->vocab_size();
    report_.has_begin = tokenizer->begin_of_text() >= 0;
    if (tokenizer->vocab_size() > report_.config.vocab_size) {
      report_.notes.push_back(fmt::format("the tokenizer has {} tokens, the model only {}; give another --tokenizer",
                                          tokenizer->vocab_size(), report_.config.vocab_size));
    }
  }

  const ImportOptions& options_;
  ImportReport report_;
};

}  // namespace

Result<ImportReport> ImportModel(const ImportOptions& options) { return Import(options).Run(); }

}  // namespace tensorcache::pretrained
