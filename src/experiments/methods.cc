#include "experiments/methods.h"

#include <fmt/format.h>

#include "core/config.h"
#include "methods/method.h"

namespace tensorcache::experiments {

std::string MethodTitle(CacheMethod method) {
  const methods::Method* known = methods::FindMethod(method);
  return known == nullptr ? "" : std::string(known->title());
}

std::string Arm::Title() const {
  std::string title = MethodTitle(method);
  if (method != CacheMethod::kTensorCache) return title;
  return title + (design == MemoryDesign::kPaper ? ", paper's design" : ", associative");
}

std::string Arm::Name() const {
  std::string name(NameOf(method));
  if (design != MemoryDesign::kPaper) name += fmt::format("-{}", NameOf(design));
  return name;
}

std::vector<std::string> Arm::Changes() const {
  std::vector<std::string> changes = {fmt::format("cache.method={}", NameOf(method))};
  if (design != MemoryDesign::kPaper) changes.push_back(fmt::format("cache.tensor_cache.design={}", NameOf(design)));
  return changes;
}

std::vector<Arm> ArmsOf(std::span<const CacheMethod> methods) { return {methods.begin(), methods.end()}; }

std::string ContextLabel(int64_t tokens) {
  if (tokens >= 1'000'000) return fmt::format("{}M", tokens / 1'000'000);
  return tokens % 1024 == 0 ? fmt::format("{}K", tokens / 1024) : std::to_string(tokens);
}

}  // namespace tensorcache::experiments
