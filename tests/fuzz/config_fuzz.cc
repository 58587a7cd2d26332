// Any text as JSON and as a config, then any text as an override of it. What is accepted must survive ToJson and back.
#include <array>

#include "core/config.h"
#include "tests/fuzz/driver.h"

namespace tensorcache::fuzz {
namespace {

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

void CheckReadsBack(const Config& config) {
  const std::string text = ToJson(config).dump();
  const auto json = ParseJson(text, "fuzz");
  TC_CHECK(json.ok());
  Config again;
  TC_CHECK(ParseConfig(*json, &again).ok());
  TC_CHECK(ToJson(again).dump() == text);
}

}  // namespace

// The input is a JSON text, then, after a zero byte, an override.
void Run(std::string_view input) {
  const auto parts = Split(input, 2);
  Config config;
  if (const auto json = ParseJson(parts[0], "fuzz"); json.ok()) {
    TC_CHECK(ParseJson(json->dump(), "fuzz").ok());
    const Status status = ParseConfig(*json, &config);
    if (!status.ok()) CheckMessage(status);
  } else {
    CheckMessage(json.status());
  }
  if (parts[0].size() < input.size()) {
    const Status status = ApplyOverride(parts[1], &config);
    if (!status.ok()) CheckMessage(status);
  }
  CheckReadsBack(config);
}

std::vector<std::string> Seeds() {
  return {Join({R"({"layers":12,"seed":18446744073709551615,"small":255,"base":1e6,"tied":false,"name":"x\u20ac",)"
                R"("cache":{"window":7,"rule":"delta","decay":0.5},"sizes":[1,-2],"stages":[{"window":1},{}],)"
                R"("note":null,"second":{"rule":"outer"}})",
                "cache.window=128"}),
          Join({R"([[{"a":[{}]}],-1.5e-7,"\ud83d\ude00"])", R"(note="q")"}),
          Join({R"({"cache":{"windw":1}})", "second.rule=delta"})};
}

std::vector<std::string> Words() {
  return {R"("layers":)",  R"("seed":)",    R"("cache":{)", R"("window":)",        R"("rule":)",
          R"("outer")",    R"("stages":[)", R"("second":)", R"("note":null)",      R"("sizes":[)",
          "cache.window=", "second.decay=", "note=",        "9223372036854775808", "-1",
          "1e308",         "true",          "null",         R"(\u0000)",           std::string(1, '\0')};
}

}  // namespace tensorcache::fuzz
