#include "experiments/methods.h"

#include <fmt/format.h>

#include "methods/method.h"

namespace tensorcache::experiments {

std::string MethodTitle(CacheMethod method) {
  const methods::Method* known = methods::FindMethod(method);
  return known == nullptr ? "" : std::string(known->title());
}

std::string ContextLabel(int64_t tokens) {
  if (tokens >= 1'000'000) return fmt::format("{}M", tokens / 1'000'000);
  return tokens % 1024 == 0 ? fmt::format("{}K", tokens / 1024) : std::to_string(tokens);
}

}  // namespace tensorcache::experiments
