#include "core/config.h"

#include <gtest/gtest.h>

#include <array>
#include <cfloat>

#include "core/file.h"

namespace tensorcache {
namespace {

enum class Rule { kOuter, kDelta, kWedge };
constexpr auto EnumNames(Rule) {
  return std::to_array<std::pair<Rule, std::string_view>>(
      {{Rule::kOuter, "outer"}, {Rule::kDelta, "delta"}, {Rule::kWedge, "wedge"}});
}

struct CacheConfig {
  int window = 512;
  Rule rule = Rule::kOuter;
  float decay = 0.995f;

  template <class V>
  void Fields(V& v) {
    v("window", window, "keys kept exactly");
    v("rule", rule, "how an evicted pair is written");
    v("decay", decay, "of the memory, per write");
  }
};

struct ModelConfig {
  int64_t layers = 4;
  uint8_t small = 1;
  uint64_t seed = 1337;
  double rope_base = 10000;
  bool tied = true;
  std::string name = "tiny";
  CacheConfig cache;
  std::vector<int> sizes = {1, 2};
  std::vector<CacheConfig> stages;
  std::vector<bool> flags;
  std::optional<int> limit;
  std::optional<CacheConfig> second;
  std::optional<std::string> note;

  template <class V>
  void Fields(V& v) {
    v("layers", layers, "number of layers");
    v("small", small, "");
    v("seed", seed, "");
    v("rope_base", rope_base, "");
    v("tied", tied, "");
    v("name", name, "");
    v("cache", cache, "");
    v("sizes", sizes, "");
    v("stages", stages, "");
    v("flags", flags, "");
    v("limit", limit, "");
    v("second", second, "");
    v("note", note, "");
  }
};

std::string ParseError(std::string_view text) {
  ModelConfig config;
  const std::string before = ToJson(config).dump();
  const Status status = ParseConfig(ParseJson(text, "test").value(), &config);
  if (status.ok()) return "ok";
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(ToJson(config).dump(), before);
  return status.message();
}

std::string OverrideError(std::string_view assignment) {
  ModelConfig config;
  const std::string before = ToJson(config).dump();
  const Status status = ApplyOverride(assignment, &config);
  if (status.ok()) return "ok";
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(ToJson(config).dump(), before);
  return status.message();
}

TEST(Config, ReadsGivenKeysAndKeepsTheOthers) {
  ModelConfig config;
  const auto json = ParseJson(R"({"layers": 12, "cache": {"rule": "delta"}, "sizes": [], "limit": 3, "rope_base": 5,
                                  "stages": [{"window": 7}, {}], "flags": [true, false], "second": {"window": 1}})",
                              "test");
  ASSERT_TRUE(ParseConfig(*json, &config).ok());
  EXPECT_EQ(config.layers, 12);
  EXPECT_EQ(config.cache.rule, Rule::kDelta);
  EXPECT_EQ(config.cache.window, 512);
  EXPECT_EQ(config.name, "tiny");
  EXPECT_TRUE(config.sizes.empty());
  EXPECT_EQ(config.limit, 3);
  EXPECT_EQ(config.rope_base, 5.0);
  ASSERT_EQ(config.stages.size(), 2u);
  EXPECT_EQ(config.stages[0].window, 7);
  EXPECT_EQ(config.flags, (std::vector<bool>{true, false}));
  EXPECT_EQ(config.second->window, 1);
  ASSERT_TRUE(ParseConfig(Json::parse(R"({"limit": null})"), &config).ok());
  EXPECT_EQ(config.limit, std::nullopt);
}

TEST(Config, UnknownKeysNameTheNearest) {
  EXPECT_EQ(ParseError(R"({"cache": {"windw": 1}})"), "unknown key 'cache.windw'; did you mean 'window'?");
  EXPECT_EQ(ParseError(R"({"cache": {"temperature": 1}})"),
            "unknown key 'cache.temperature'; 'cache' has window, rule, decay");
  EXPECT_EQ(ParseError(R"({"stages": [{}, {"rul": "outer"}]})"), "unknown key 'stages[1].rul'; did you mean 'rule'?");
}

TEST(Config, TypeErrorsNameThePath) {
  EXPECT_EQ(ParseError("[]"), "the config: expected an object, found an array");
  EXPECT_EQ(ParseError(R"({"layers": "four"})"), "'layers': expected an integer, found the string 'four'");
  EXPECT_EQ(ParseError(R"({"layers": 4.0})"), "'layers': expected an integer, found 4.0");
  EXPECT_EQ(ParseError(R"({"layers": true})"), "'layers': expected an integer, found true");
  EXPECT_EQ(ParseError(R"({"layers": null})"), "'layers': expected an integer, found null");
  EXPECT_EQ(ParseError(R"({"tied": 1})"), "'tied': expected true or false, found 1");
  EXPECT_EQ(ParseError(R"({"name": 1})"), "'name': expected a string, found 1");
  EXPECT_EQ(ParseError(R"({"rope_base": "x"})"), "'rope_base': expected a number, found the string 'x'");
  EXPECT_EQ(ParseError(R"({"sizes": {}})"), "'sizes': expected an array, found an object");
  EXPECT_EQ(ParseError(R"({"sizes": [1, "x"]})"), "'sizes[1]': expected an integer, found the string 'x'");
  EXPECT_EQ(ParseError(R"({"cache": 3})"), "'cache': expected an object, found 3");
  EXPECT_EQ(ParseError(R"({"limit": []})"), "'limit': expected an integer, found an array");
}

TEST(Config, NumbersMustFitTheirType) {
  EXPECT_EQ(ParseError(R"({"small": 255, "seed": 18446744073709551615, "layers": -9223372036854775808})"), "ok");
  EXPECT_EQ(ParseError(R"({"small": 256})"), "'small': expected an integer from 0 to 255, found 256");
  EXPECT_EQ(ParseError(R"({"small": -1})"), "'small': expected an integer from 0 to 255, found -1");
  EXPECT_EQ(ParseError(R"({"seed": -1})"), "'seed': expected an integer from 0 to 18446744073709551615, found -1");
  EXPECT_NE(ParseError(R"({"layers": 9223372036854775808})"), "ok");
  EXPECT_NE(ParseError(R"({"seed": 18446744073709551616})"), "ok");
  EXPECT_NE(ParseError(R"({"cache": {"window": 2147483648}})"), "ok");
  EXPECT_NE(ParseError(R"({"cache": {"decay": 1e39}})"), "ok");
}

TEST(Config, EnumErrorsNameTheNearest) {
  EXPECT_EQ(ParseError(R"({"cache": {"rule": "detla"}})"),
            "'cache.rule': expected one of outer, delta, wedge, found the string 'detla'; did you mean 'delta'?");
  EXPECT_EQ(ParseError(R"({"cache": {"rule": 1}})"), "'cache.rule': expected one of outer, delta, wedge, found 1");
}

TEST(Config, WritesJsonThatReadsBack) {
  ModelConfig config;
  config.cache = {.window = 3, .rule = Rule::kWedge, .decay = 0.1f};
  config.stages = {config.cache, {.window = 4, .rule = Rule::kOuter, .decay = FLT_MAX}};
  config.flags = {true, false};
  config.note = "x";
  const std::string text = ToJson(config).dump();
  EXPECT_TRUE(text.starts_with(R"({"layers":4,"small":1,)")) << text;
  EXPECT_NE(text.find(R"("cache":{"window":3,"rule":"wedge","decay":0.1})"), text.npos) << text;
  ModelConfig again;
  ASSERT_TRUE(ParseConfig(ParseJson(text, "test").value(), &again).ok());
  EXPECT_EQ(ToJson(again).dump(), text);
  EXPECT_EQ(again.stages[1].decay, FLT_MAX);
}

TEST(Config, OverridesOneKey) {
  ModelConfig config;
  for (const std::string_view assignment :
       {"cache.window=128", "cache.rule=delta", "name=a=b", "tied=false", "sizes=[3,4]", "limit=5", "second.window=9",
        "note=null and void", "rope_base=1e6", "stages=[{\"window\": 8}]"}) {
    const Status status = ApplyOverride(assignment, &config);
    EXPECT_TRUE(status.ok()) << status.message();
  }
  EXPECT_EQ(config.cache.window, 128);
  EXPECT_EQ(config.cache.rule, Rule::kDelta);
  EXPECT_EQ(config.name, "a=b");
  EXPECT_FALSE(config.tied);
  EXPECT_EQ(config.sizes, (std::vector<int>{3, 4}));
  EXPECT_EQ(config.limit, 5);
  EXPECT_EQ(config.second->window, 9);
  EXPECT_EQ(config.note, "null and void");
  EXPECT_EQ(config.rope_base, 1e6);
  EXPECT_EQ(config.stages.at(0).window, 8);
  ASSERT_TRUE(ApplyOverride("limit=null", &config).ok());
  EXPECT_EQ(config.limit, std::nullopt);
  ASSERT_TRUE(ApplyOverride("name=12", &config).ok());
  EXPECT_EQ(config.name, "12");
  ASSERT_TRUE(ApplyOverride("name=\"q\"", &config).ok());
  EXPECT_EQ(config.name, "q");
}

TEST(Config, OverrideErrorsSayWhatToDo) {
  EXPECT_EQ(OverrideError("cache.window"), "'cache.window': expected key=value, such as cache.window=128");
  EXPECT_EQ(OverrideError("=1"), "'=1': expected key=value, such as cache.window=128");
  EXPECT_EQ(OverrideError("cache.windw=1"), "unknown key 'cache.windw'; did you mean 'window'?");
  EXPECT_EQ(OverrideError("layrs=1"), "unknown key 'layrs'; did you mean 'layers'?");
  EXPECT_EQ(OverrideError("layers.x=1"), "unknown key 'layers.x'; 'layers' has no keys");
  EXPECT_EQ(OverrideError("layers=many"), "'layers': expected an integer, found the string 'many'");
  EXPECT_EQ(OverrideError("layers="), "'layers': expected an integer, found the string ''");
  EXPECT_EQ(OverrideError("cache=1"), "'cache': expected an object, found 1");
  EXPECT_EQ(OverrideError("name=\xff"), "'name=\\xff' is not UTF-8");
  EXPECT_NE(OverrideError("cache..window=1"), "ok");
}

TEST(Config, ListsKeysWithTypesValuesAndHelp) {
  const auto keys = ConfigKeys(ModelConfig());
  ASSERT_EQ(keys[0].path, "layers");
  EXPECT_EQ(keys[0].help, "number of layers");
  EXPECT_EQ(keys[7].path, "cache.rule");
  EXPECT_EQ(keys[7].type, "one of outer, delta, wedge");
  EXPECT_EQ(keys[7].value, "\"outer\"");
}

TEST(Config, FileErrorsStartWithThePath) {
  const std::string path = ::testing::TempDir() + "/config_test.json";
  ASSERT_TRUE(WriteFileAtomically(path, "{\"layers\": 2}").ok());
  ModelConfig config;
  ASSERT_TRUE(ReadConfigFile(path, &config).ok());
  EXPECT_EQ(config.layers, 2);
  ASSERT_TRUE(WriteFileAtomically(path, "{\"layers\": {}}").ok());
  EXPECT_EQ(ReadConfigFile(path, &config).message(), path + ": 'layers': expected an integer, found an object");
}

TEST(Config, NumbersThatAreNoNameAreFound) {
  ModelConfig config;
  EXPECT_TRUE(CheckNames(config).ok());
  config.cache.rule = static_cast<decltype(config.cache.rule)>(9);
  EXPECT_EQ(CheckNames(config).message(), "cache.rule is number 9; it must be one of outer, delta, wedge");
}

}  // namespace
}  // namespace tensorcache
