// Any text as JSON and as a config, then any text as an override of it. What is accepted must survive ToJson and back.
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "core/config.h"

namespace {

using tensorcache::ApplyOverride;
using tensorcache::Json;
using tensorcache::ParseConfig;
using tensorcache::ParseJson;
using tensorcache::Status;
using tensorcache::ToJson;

enum class Rule { kOuter, kDelta };
constexpr auto EnumNames(Rule) {
  return std::to_array<std::pair<Rule, std::string_view>>({{Rule::kOuter, "outer"}, {Rule::kDelta, "delta"}});
}

struct Cache {
  int window = 512;
  Rule rule = Rule::kOuter;
  float decay = 0.995f;

  template <class V>
  void Fields(V& v) {
    v("window", window, "");
    v("rule", rule, "");
    v("decay", decay, "");
  }
};

struct Config {
  int64_t layers = 4;
  uint64_t seed = 1;
  uint8_t small = 1;
  double base = 10000;
  bool tied = true;
  std::string name;
  Cache cache;
  std::vector<int8_t> sizes;
  std::vector<Cache> stages;
  std::optional<std::string> note;
  std::optional<Cache> second;

  template <class V>
  void Fields(V& v) {
    v("layers", layers, "");
    v("seed", seed, "");
    v("small", small, "");
    v("base", base, "");
    v("tied", tied, "");
    v("name", name, "");
    v("cache", cache, "");
    v("sizes", sizes, "");
    v("stages", stages, "");
    v("note", note, "");
    v("second", second, "");
  }
};

void Require(bool condition) {
  if (!condition) std::abort();
}

void RequireOneLine(const Status& status) {
  Require(!status.message().empty() && status.message().find('\n') == std::string::npos);
}

void RequireReadsBack(const Config& config) {
  const std::string text = ToJson(config).dump();
  const auto json = ParseJson(text, "fuzz");
  Require(json.ok());
  Config again;
  Require(ParseConfig(*json, &again).ok());
  Require(ToJson(again).dump() == text);
}

}  // namespace

// The input is a JSON text, then, after a zero byte, an override.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t end = std::min(input.find('\0'), size);
  Config config;
  if (const auto json = ParseJson(input.substr(0, end), "fuzz"); json.ok()) {
    Require(ParseJson(json->dump(), "fuzz").ok());
    const Status status = ParseConfig(*json, &config);
    if (!status.ok()) RequireOneLine(status);
  } else {
    RequireOneLine(json.status());
  }
  if (end < size) {
    const Status status = ApplyOverride(input.substr(end + 1), &config);
    if (!status.ok()) RequireOneLine(status);
  }
  RequireReadsBack(config);
  return 0;
}
