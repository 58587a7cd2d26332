#include "pretrained/hf_tensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/check.h"

namespace tensorcache::pretrained {
namespace {

// A linear layer: its parts and their output features.
struct Linear {
  std::string theirs;
  std::vector<std::pair<std::string, int64_t>> ours;
  int64_t in;
  bool bias;
  bool rotated = false;  // its outputs are turned by rotary embedding
};

class Table {
 public:
  Table(HfFamily family, const ModelConfig& config) : family_(family), config_(config) {}

  std::vector<HfTensor> Make() {
    if (family_ == HfFamily::kGpt2) {
      AddGpt2();
    } else {
      AddLlama();
    }
    if (!config_.tie_word_embeddings) {
      tensors_.push_back({.name = std::string(kHeadName),
                          .has_prefix = false,
                          .parts = {{std::string(kHeadName), {config_.vocab_size, config_.hidden_size}}}});
    }
    return std::move(tensors_);
  }

 private:
  bool is_gpt2() const { return family_ == HfFamily::kGpt2; }

  void AddMatrix(std::string theirs, const std::string& ours, int64_t rows) {
    tensors_.push_back({.name = std::move(theirs), .parts = {{ours, {rows, config_.hidden_size}}}});
  }
  void AddNorm(const std::string& theirs, const std::string& ours) {
    const std::vector<int64_t> shape = {config_.hidden_size};
    tensors_.push_back({.name = theirs + ".weight", .parts = {{ours + ".weight", shape}}});
    if (config_.norm == NormKind::kLayerNorm) {
      tensors_.push_back({.name = theirs + ".bias", .parts = {{ours + ".bias", shape}}});
    }
  }
  void AddLinear(const Linear& linear) {
    const bool interleaved = linear.rotated && config_.rope_pairing == RopePairing::kInterleaved;
    HfTensor weight{
        .name = linear.theirs + ".weight", .transposed = is_gpt2(), .head_dim = interleaved ? config_.HeadDim() : 0};
    HfTensor bias{.name = linear.theirs + ".bias", .head_dim = weight.head_dim};
    for (const auto& [name, out] : linear.ours) {
      weight.parts.push_back({name + ".weight", {out, linear.in}});
      bias.parts.push_back({name + ".bias", {out}});
    }
    tensors_.push_back(std::move(weight));
    if (linear.bias) tensors_.push_back(std::move(bias));
  }

  void AddLlama() {
    const int64_t E = config_.hidden_size, F = config_.intermediate_size, D = config_.HeadDim();
    const int64_t queries = config_.num_attention_heads * D, keys = config_.num_key_value_heads * D;
    AddMatrix("embed_tokens.weight", "model.embed_tokens.weight", config_.vocab_size);
    for (int64_t i = 0; i < config_.num_hidden_layers; ++i) {
      const std::string at = fmt::format("layers.{}.", i), our = "model." + at;
      const auto add = [&](const char* name, int64_t out, int64_t in, bool bias, bool rotated = false) {
        AddLinear({.theirs = at + name, .ours = {{our + name, out}}, .in = in, .bias = bias, .rotated = rotated});
      };
      AddNorm(at + "input_layernorm", our + "input_layernorm");
      add("self_attn.q_proj", queries, E, config_.attention_bias, true);
      add("self_attn.k_proj", keys, E, config_.attention_bias, true);
      add("self_attn.v_proj", keys, E, config_.attention_bias);
      add("self_attn.o_proj", E, queries, config_.output_bias);
      AddNorm(at + "post_attention_layernorm", our + "post_attention_layernorm");
      add("mlp.gate_proj", F, E, config_.mlp_bias);
      add("mlp.up_proj", F, E, config_.mlp_bias);
      add("mlp.down_proj", E, F, config_.mlp_bias);
    }
    AddNorm("norm", "model.norm");
  }

  void AddGpt2() {
    const int64_t E = config_.hidden_size, F = config_.intermediate_size;
    AddMatrix("wte.weight", "model.embed_tokens.weight", config_.vocab_size);
    AddMatrix("wpe.weight", "model.embed_positions.weight", config_.max_position_embeddings);
    for (int64_t i = 0; i < config_.num_hidden_layers; ++i) {
      const std::string at = fmt::format("h.{}.", i), our = fmt::format("model.layers.{}.", i);
      const std::string attention = our + "self_attn.", mlp = our + "mlp.";
      const auto add = [&](const char* theirs, std::vector<std::pair<std::string, int64_t>> ours, int64_t in) {
        AddLinear({.theirs = at + theirs, .ours = std::move(ours), .in = in, .bias = true});
      };
      AddNorm(at + "ln_1", our + "input_layernorm");
      add("attn.c_attn", {{attention + "q_proj", E}, {attention + "k_proj", E}, {attention + "v_proj", E}}, E);
      add("attn.c_proj", {{attention + "o_proj", E}}, E);
      AddNorm(at + "ln_2", our + "post_attention_layernorm");
      add("mlp.c_fc", {{mlp + "up_proj", F}}, E);
      add("mlp.c_proj", {{mlp + "down_proj", E}}, F);
    }
    AddNorm("ln_f", "model.norm");
  }

  HfFamily family_;
  const ModelConfig& config_;
  std::vector<HfTensor> tensors_;
};

// Where row `row` of ours stands in theirs: a head's rows 0 2 4 ... 1 3 5 ... of ours, in this order.
int64_t TheirRow(int64_t row, int64_t head_dim) {
  if (head_dim == 0) return row;
  const int64_t in_head = row % head_dim;
  return row - in_head + in_head / 2 + (in_head % 2) * (head_dim / 2);
}

// `inner` elements a row in ours. Tiles, so that the strided side stays in the cache while it is gone through.
template <size_t kBytes>
void CopyTransposed(int64_t rows, int64_t inner, int64_t their_stride, bool to_theirs, std::byte* ours,
                    std::byte* theirs) {
  constexpr int64_t kTile = 64;
  for (int64_t row_tile = 0; row_tile < rows; row_tile += kTile) {
    for (int64_t tile = 0; tile < inner; tile += kTile) {
      for (int64_t row = row_tile; row < std::min(rows, row_tile + kTile); ++row) {
        for (int64_t i = tile; i < std::min(inner, tile + kTile); ++i) {
          std::byte* our = ours + (row * inner + i) * static_cast<int64_t>(kBytes);
          std::byte* their = theirs + (i * their_stride + row) * static_cast<int64_t>(kBytes);
          std::memcpy(to_theirs ? their : our, to_theirs ? our : their, kBytes);
        }
      }
    }
  }
}

}  // namespace

std::vector<int64_t> HfTensor::Shape() const {
  std::vector<int64_t> shape = parts.front().shape;
  for (size_t i = 1; i < parts.size(); ++i) shape[0] += parts[i].shape[0];
  if (transposed) std::swap(shape[0], shape[1]);
  return shape;
}

std::vector<HfTensor> HfTensors(HfFamily family, const ModelConfig& config) { return Table(family, config).Make(); }

std::string_view EmbeddingName(HfFamily family) {
  return family == HfFamily::kGpt2 ? "wte.weight" : "embed_tokens.weight";
}

bool IsBuffer(HfFamily family, std::string_view name) {
  if (family == HfFamily::kGpt2) return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias");
  return name.ends_with("rotary_emb.inv_freq");
}

void CopyPart(const HfTensor& tensor, size_t part, int64_t element_bytes, CopyTo to, std::byte* ours,
              std::byte* theirs) {
  int64_t before = 0, total = 0;
  for (size_t i = 0; i < tensor.parts.size(); ++i) {
    if (i < part) before += tensor.parts[i].shape[0];
    total += tensor.parts[i].shape[0];
  }
  const std::vector<int64_t>& shape = tensor.parts[part].shape;
  const int64_t rows = shape[0], inner = shape.size() > 1 ? shape[1] : 1;
  if (tensor.transposed) {
    TC_CHECK(tensor.head_dim == 0 && (element_bytes == 2 || element_bytes == 4));
    (element_bytes == 2 ? CopyTransposed<2> : CopyTransposed<4>)(rows, inner, total, to == CopyTo::kTheirs, ours,
                                                                 theirs + before * element_bytes);
    return;
  }
  const int64_t bytes = inner * element_bytes;
  for (int64_t row = 0; row < rows; ++row) {
    std::byte* our = ours + row * bytes;
    std::byte* their = theirs + (before + TheirRow(row, tensor.head_dim)) * bytes;
    std::memcpy(to == CopyTo::kTheirs ? their : our, to == CopyTo::kTheirs ? our : their, static_cast<size_t>(bytes));
  }
}

}  // namespace tensorcache::pretrained
