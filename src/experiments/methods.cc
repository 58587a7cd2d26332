#include "experiments/methods.h"

#include <fmt/format.h>

namespace tensorcache::experiments {

std::string MethodTitle(CacheMethod method) {
  switch (method) {
    case CacheMethod::kFull: return "Full KV";
    case CacheMethod::kWindow: return "Window KV";
    case CacheMethod::kStreamingLlm: return "StreamingLLM";
    case CacheMethod::kInfini: return "Infini-attention";
    case CacheMethod::kTensorCache: return "Tensor Cache";
  }
  return "";
}

std::string ContextLabel(int64_t tokens) {
  if (tokens >= 1'000'000) return fmt::format("{}M", tokens / 1'000'000);
  return tokens % 1024 == 0 ? fmt::format("{}K", tokens / 1024) : std::to_string(tokens);
}

}  // namespace tensorcache::experiments
