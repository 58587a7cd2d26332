#include "pretrained/llama2c.h"

#include <fmt/format.h>

#include <array>
#include <cstring>
#include <optional>

namespace tensorcache::pretrained {
namespace {

constexpr uint32_t kMagic = 0x616b3432;  // "ak42"
constexpr size_t kHeaderBytes = 256;     // of version 1

struct Header {
  int version = 0;
  int64_t dim, hidden_dim, layers, heads, kv_heads, vocab_size, context;
  bool tied;
  size_t bytes;
};

Result<Header> ReadHeader(std::span<const std::byte> file) {
  const auto number = [&](size_t index) {
    int32_t value;
    std::memcpy(&value, file.data() + index * sizeof(value), sizeof(value));
    return value;
  };
  constexpr size_t kNumbers = 7;
  if (file.size() < kNumbers * sizeof(int32_t)) return Corrupt("too short for a model of llama2.c");
  Header header{.bytes = kNumbers * sizeof(int32_t)};
  size_t first = 0;
  if (static_cast<uint32_t>(number(0)) == kMagic) {
    header.version = number(1);
    if (header.version == 2) {
      return Unsupported("a llama2.c model of version 2, quantised to int8; export it again with --version 1");
    }
    if (header.version != 1) {
      return Unsupported(fmt::format("a llama2.c model of version {}; known are 0 and 1", header.version));
    }
    if (file.size() < kHeaderBytes) return Corrupt("too short for a model of llama2.c");
    first = 2;
    header.bytes = kHeaderBytes;
  }
  header.dim = number(first);
  header.hidden_dim = number(first + 1);
  header.layers = number(first + 2);
  header.heads = number(first + 3);
  header.kv_heads = number(first + 4);
  header.vocab_size = number(first + 5);
  header.context = number(first + 6);
  header.tied =
      header.version == 0 ? header.vocab_size > 0 : file[(first + kNumbers) * sizeof(int32_t)] != std::byte{0};
  if (header.version == 0 && header.vocab_size < 0) header.vocab_size = -header.vocab_size;
  return header;
}

ModelConfig ConfigOf(const Header& header) {
  ModelConfig config;
  config.vocab_size = header.vocab_size;
  config.hidden_size = header.dim;
  config.intermediate_size = header.hidden_dim;
  config.num_hidden_layers = header.layers;
  config.num_attention_heads = header.heads;
  config.num_key_value_heads = header.kv_heads;
  config.max_position_embeddings = header.context;
  config.norm = NormKind::kRmsNorm;
  config.norm_eps = 1e-5;
  config.hidden_act = Activation::kSilu;
  config.gated_mlp = true;
  config.rope_pairing = RopePairing::kInterleaved;
  config.tie_word_embeddings = header.tied;
  config.cache.method = CacheMethod::kFull;
  return config;
}

// A run of equal tensors: one a layer, or a single one.
struct Block {
  std::string name;  // after "model.layers.N.", or the whole name
  std::vector<int64_t> shape;
  bool per_layer = true;
  bool skipped = false;
};

// In the order of the file.
std::vector<Block> BlocksOf(const Header& header) {
  const int64_t E = header.dim, F = header.hidden_dim, V = header.vocab_size, D = E / header.heads;
  const int64_t keys = header.kv_heads * D;
  const Block embedding{"model.embed_tokens.weight", {V, E}, false}, norm{"model.norm.weight", {E}, false};
  const Block attention_norm{"input_layernorm.weight", {E}}, mlp_norm{"post_attention_layernorm.weight", {E}};
  const std::vector<Block> attention = {{"self_attn.q_proj.weight", {E, E}},
                                        {"self_attn.k_proj.weight", {keys, E}},
                                        {"self_attn.v_proj.weight", {keys, E}},
                                        {"self_attn.o_proj.weight", {E, E}}};
  const std::vector<Block> mlp = {
      {"mlp.gate_proj.weight", {F, E}}, {"mlp.down_proj.weight", {E, F}}, {"mlp.up_proj.weight", {F, E}}};
  std::vector<Block> blocks;
  const auto add = [&](const std::vector<Block>& more) { blocks.insert(blocks.end(), more.begin(), more.end()); };
  if (header.version == 0) {
    add({embedding, attention_norm});
    add(attention);
    add({mlp_norm});
    add(mlp);
    // Cosines and sines of the rotary embedding, which everybody computes.
    add({norm, {"", {2, header.context, D / 2}, false, true}});
  } else {
    add({attention_norm, mlp_norm, norm, embedding});
    add(attention);
    add(mlp);
  }
  if (!header.tied) add({{"lm_head.weight", {V, E}, false}});
  return blocks;
}

// Bytes of one tensor, or nothing if that is beyond any file.
std::optional<int64_t> BytesOf(const Block& block) {
  int64_t bytes = sizeof(float);
  for (const int64_t size : block.shape) {
    if (__builtin_mul_overflow(bytes, size, &bytes)) return std::nullopt;
  }
  return bytes;
}

std::optional<int64_t> FileBytes(const Header& header, const std::vector<Block>& blocks) {
  int64_t total = static_cast<int64_t>(header.bytes);
  for (const Block& block : blocks) {
    auto bytes = BytesOf(block);
    if (!bytes || __builtin_mul_overflow(*bytes, block.per_layer ? header.layers : 1, &*bytes) ||
        __builtin_add_overflow(total, *bytes, &total)) {
      return std::nullopt;
    }
  }
  return total;
}

Status Read(Llama2cModel* model) {
  const std::span<const std::byte> file = model->file.bytes();
  TC_ASSIGN_OR_RETURN(const Header header, ReadHeader(file));
  model->config = ConfigOf(header);
  if (const Status status = ValidateModelConfig(model->config); !status.ok()) {
    return Corrupt(fmt::format("not a model of llama2.c, or damaged: {}", status.message()));
  }
  const std::vector<Block> blocks = BlocksOf(header);
  if (const auto bytes = FileBytes(header, blocks); bytes != std::ssize(file)) {
    return Corrupt(fmt::format("the file has {} bytes, but its header describes a model of {}; fetch it again",
                               file.size(), bytes ? fmt::format("{}", *bytes) : "more than any file has"));
  }
  size_t at = header.bytes;
  for (const Block& block : blocks) {
    const auto bytes = static_cast<size_t>(*BytesOf(block));
    for (int64_t layer = 0; layer < (block.per_layer ? header.layers : 1); ++layer, at += bytes) {
      if (block.skipped) continue;
      model->tensors.push_back(
          {.name = block.per_layer ? fmt::format("model.layers.{}.{}", layer, block.name) : block.name,
           .dtype = DType::kF32,
           .shape = block.shape,
           .data = file.subspan(at, bytes)});
    }
  }
  return OkStatus();
}

}  // namespace

Result<Llama2cModel> OpenLlama2c(const std::string& path) {
  TC_ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open(path));
  Llama2cModel model{.config = {}, .file = std::move(file), .tensors = {}};
  const Status status = Read(&model);
  if (!status.ok()) return Status(status.code(), fmt::format("{}: {}", path, status.message()));
  return model;
}

}  // namespace tensorcache::pretrained
