#include "core/json.h"

#include <gtest/gtest.h>

#include "core/file.h"

namespace tensorcache {
namespace {

std::string ErrorOf(std::string_view text, const JsonLimits& limits = {}) {
  const auto json = ParseJson(text, "test", limits);
  if (json.ok()) return "parsed";
  EXPECT_EQ(json.status().code(), StatusCode::kCorrupt);
  return json.status().message();
}

TEST(Json, ParsesEveryKindOfValue) {
  const auto json = ParseJson(
      R"( {"a": [1, -2, 2.5, true, false, null, "x\u00e9\n"], "b": {"c": {}}, "": 18446744073709551615} )", "test");
  ASSERT_TRUE(json.ok()) << json.status().message();
  EXPECT_EQ(json->dump(),
            "{\"\":18446744073709551615,\"a\":[1,-2,2.5,true,false,null,\"x\u00e9\\n\"],\"b\":{\"c\":{}}}");
  EXPECT_EQ(ParseJson("7", "test").value(), 7);
}

TEST(Json, ErrorsNameLineAndColumn) {
  EXPECT_EQ(ErrorOf("{\n  \"a\": 1,\n  \"b\": x\n}"),
            "test: line 3, column 8: syntax error while parsing value - invalid literal");
  EXPECT_EQ(ErrorOf(""),
            "test: line 1, column 1: syntax error while parsing value - unexpected end of input; expected '[', '{', or "
            "a literal");
}

TEST(Json, RejectsDuplicateKeysAtAnyDepth) {
  EXPECT_EQ(ErrorOf(R"({"a": 1, "a": 1})"), "test: line 1, column 12: duplicate key 'a'");
  EXPECT_EQ(ErrorOf("{\"a\": [{\"b\": {}},\n {\"b\": 1, \"\\u0062\": 2}]}"),
            "test: line 2, column 18: duplicate key 'b'");
  EXPECT_EQ(ErrorOf(R"({"a": {"a": {"a": 1}}, "b": {"a": 2}})"), "parsed");
}

TEST(Json, RejectsInvalidUtf8) {
  EXPECT_EQ(ErrorOf("{\n\"a\xff\": 1}"), "test: line 2, column 3: not UTF-8");
  EXPECT_NE(ErrorOf(R"(["\ud800"])"), "parsed");
}

TEST(Json, RejectsDepth) {
  const std::string ok = std::string(64, '[') + std::string(64, ']');
  EXPECT_EQ(ErrorOf(ok), "parsed");
  EXPECT_EQ(ErrorOf("[" + ok + "]"), "test: line 1, column 65: nested deeper than 64");
  EXPECT_EQ(ErrorOf(std::string(10'000'000, '[')), "test: line 1, column 65: nested deeper than 64");
}

TEST(Json, RejectsTooManyValues) {
  EXPECT_EQ(ErrorOf("[1,2,3]", {.max_values = 4}), "parsed");
  EXPECT_EQ(ErrorOf("[1,2,3,4]", {.max_values = 4}), "test: line 1, column 9: more than 4 values");
}

TEST(Json, RejectsWhatIsNotJson) {
  for (const std::string_view text : {"NaN",    "[Infinity]", "-Infinity", "1e999",  "[1,]", "{\"a\":1,}", "// c\n1",
                                      "1 2",    "{} x",       "'a'",       "{a: 1}", "[01]", "+1",         "[1",
                                      "{\"a\"", "\"a",        "\"\t\"",    "[.5]",   "[1.]", "tru",        "\"\\x\""}) {
    const std::string error = ErrorOf(text);
    EXPECT_TRUE(error.starts_with("test: line ")) << text << ": " << error;
    EXPECT_EQ(error.find('\n'), error.npos) << error;
  }
}

TEST(Json, EveryPrefixOfADocumentIsAnErrorOrAValue) {
  const std::string text = R"({"a": [1, 2.5e3, "\u20ac", {"b": null}], "c": true})";
  for (size_t length = 0; length < text.size(); ++length) EXPECT_FALSE(ParseJson(text.substr(0, length), "test").ok());
}

TEST(Json, ReadsFiles) {
  const std::string path = ::testing::TempDir() + "/json_test.json";
  ASSERT_TRUE(WriteFileAtomically(path, "{\"a\": 1}").ok());
  EXPECT_EQ((*ReadJsonFile(path))["a"], 1);
  EXPECT_EQ(ReadJsonFile(path, 3).status().code(), StatusCode::kInvalidArgument);
  ASSERT_TRUE(WriteFileAtomically(path, "{\"a\": }").ok());
  EXPECT_TRUE(ReadJsonFile(path).status().message().starts_with(path + ": line 1, column 7"));
  EXPECT_EQ(ReadJsonFile(path + ".missing").status().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace tensorcache
