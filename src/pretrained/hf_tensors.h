// Which tensors a model of a Hugging Face family has, and how each of theirs is made of ours: one table, read in both
// directions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "pretrained/hf_config.h"
#include "tensorcache/config.h"

namespace tensorcache::pretrained {

struct OurTensor {
  std::string name;
  std::vector<int64_t> shape;  // (out, in), or (out)
};

// One of theirs: ours stacked along the output features.
struct HfTensor {
  std::string name;  // without the family's prefix
  bool has_prefix = true;
  std::vector<OurTensor> parts;
  bool transposed = false;  // theirs is (in, out)
  int64_t head_dim = 0;     // > 0: our rows of each head are interleaved pairs, theirs are split in halves

  std::vector<int64_t> Shape() const;  // theirs
  // Whether theirs is ours, byte by byte.
  bool IsSame() const { return parts.size() == 1 && !transposed && head_dim == 0; }
};

// `config` must be one of the family's. An output projection only if it is not tied.
std::vector<HfTensor> HfTensors(HfFamily family, const ModelConfig& config);

// The names of the input and the output embedding in HfTensors.
std::string_view EmbeddingName(HfFamily family);
inline constexpr std::string_view kHeadName = "lm_head.weight";

// Whether a name, without the prefix, is that of a table which models only carry along: frequencies, masks.
bool IsBuffer(HfFamily family, std::string_view name);

enum class CopyTo { kOurs, kTheirs };
// Moves the elements of part `part` between our tensor and theirs. `ours` holds the part, `theirs` the whole tensor; the one
// that is copied to is written where the part has elements.
void CopyPart(const HfTensor& tensor, size_t part, int64_t element_bytes, CopyTo to, std::byte* ours,
              std::byte* theirs);

}  // namespace tensorcache::pretrained
