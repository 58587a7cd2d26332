// The import of a Hugging Face folder: an error, or a checkpoint that loads.
#include <filesystem>

#include "core/config.h"
#include "core/model_files.h"
#include "pretrained/hf_config.h"
#include "pretrained/import.h"
#include "tests/fuzz/model_checks.h"

namespace tensorcache::fuzz {
namespace {

constexpr std::string_view kShard = "model-1.safetensors", kIndex = "model.safetensors.index.json";

std::string IndexOf(const std::vector<SeedTensor>& tensors) {
  Json map = Json::object();
  for (const SeedTensor& tensor : tensors) map[tensor.name] = kShard;
  return Json{{"metadata", {{"total_size", 1}}}, {"weight_map", map}}.dump();
}

std::vector<SeedTensor> Gpt2Tensors() {
  std::vector<SeedTensor> tensors = {{"transformer.wte.weight", {5, 4}}, {"transformer.wpe.weight", {6, 4}}};
  const auto both = [&](const std::string& name, std::vector<int64_t> weight) {
    const int64_t out = weight.back();
    tensors.push_back({"transformer." + name + ".weight", std::move(weight)});
    tensors.push_back({"transformer." + name + ".bias", {out}});
  };
  both("h.0.ln_1", {4});
  both("h.0.attn.c_attn", {4, 12});
  both("h.0.attn.c_proj", {4, 4});
  both("h.0.ln_2", {4});
  both("h.0.mlp.c_fc", {4, 16});
  both("h.0.mlp.c_proj", {16, 4});
  both("ln_f", {4});
  return tensors;
}

}  // namespace

// config.json, model.safetensors.index.json (if it is empty: one file), and header and data of the tensors' file.
void Run(std::string_view input) {
  const auto parts = Split(input, 4);
  Remove("hf");
  Remove("out");
  std::filesystem::create_directory(PathOf("hf"));
  Put("hf/config.json", parts[0]);
  Put(std::string("hf/") + std::string(parts[1].empty() ? kModelFile : kShard), JoinSafetensors(parts[2], parts[3]));
  if (!parts[1].empty()) Put("hf/" + std::string(kIndex), parts[1]);
  const auto report =
      pretrained::ImportModel({.from = PathOf("hf"), .out = PathOf("out"), .tokenizer = "", .progress = {}});
  if (!report.ok()) return CheckMessage(report.status());
  for (const std::string& note : report->notes) TC_CHECK(note.find('\n') == std::string::npos);
  const Status status = TryModel(PathOf("out"), {});
  if (!status.ok()) CheckMessage(status);
  TC_CHECK(status.ok() || status.code() == StatusCode::kIoError);  // a window that no machine holds
}

std::vector<std::string> Seeds() {
  ModelConfig llama = SmallModel();
  llama.gated_mlp = true;
  llama.cache.method = CacheMethod::kFull;
  llama.hidden_act = Activation::kSilu;
  const std::string theirs = WriteHfConfig(pretrained::HfFamily::kLlama, llama, {}, DType::kF32).dump();
  ModelConfig turned = llama;
  turned.rope_pairing = RopePairing::kInterleaved;
  turned.tie_word_embeddings = false;
  const std::string theirs_turned = WriteHfConfig(pretrained::HfFamily::kLlama, turned, {}, DType::kF32).dump();
  const SplitSafetensors tensors = MakeSafetensors(TensorsOf(llama)), more = MakeSafetensors(TensorsOf(turned)),
                         gpt2 = MakeSafetensors(Gpt2Tensors());
  std::vector<std::string> seeds = {
      Join({theirs, "", tensors.header, tensors.data}),
      Join({theirs_turned, IndexOf(TensorsOf(turned)), more.header, more.data}),
      Join({R"({"model_type":"gpt2","vocab_size":5,"n_embd":4,"n_layer":1,"n_head":2,"n_positions":6})", "",
            gpt2.header, gpt2.data})};
  for (const std::string& seed : seeds) {
    Run(seed);
    TC_CHECK(std::filesystem::exists(PathOf("out/config.json")));  // each is a model that is imported
  }
  return seeds;
}

std::vector<std::string> Words() {
  return {R"("dtype":"BF16")",
          R"("dtype":"F16")",
          R"("dtype":"F64")",
          R"("dtype":"I8")",
          R"("weight_map":{)",
          R"("sliding_window":)",
          R"("model_type":"mistral")",
          R"("rope_scaling":)",
          R"("head_dim":)",
          R"("tie_word_embeddings":true)",
          R"("model-1.safetensors")",
          R"("lm_head.weight")",
          "model.layers.0.self_attn.rotary_emb.inv_freq",
          "1099511627776",
          "4096",
          std::string(1, '\0')};
}

}  // namespace tensorcache::fuzz
