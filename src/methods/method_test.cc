#include "methods/method.h"

#include <gtest/gtest.h>

#include <set>
#include <string_view>

#include "core/config.h"

namespace tensorcache::methods {
namespace {

// The table and the enum are written in two files; what a config says by name must be what a program says by number.
TEST(Methods, TheTableIsInTheOrderOfTheEnum) {
  for (const auto& [method, name] :
       {std::pair(CacheMethod::kFull, "full"), std::pair(CacheMethod::kWindow, "window"),
        std::pair(CacheMethod::kStreamingLlm, "streaming_llm"), std::pair(CacheMethod::kInfini, "infini"),
        std::pair(CacheMethod::kTensorCache, "tensor_cache")}) {
    EXPECT_EQ(NameOf(method), name);
    EXPECT_EQ(MethodOf({.method = method}).name(), name);
  }
}

TEST(Methods, NamesAndTitlesDiffer) {
  std::set<std::string_view> names, titles;
  for (const auto& [number, name] : EnumNames(CacheMethod{})) {
    const Method* method = FindMethod(number);
    ASSERT_NE(method, nullptr);
    EXPECT_TRUE(names.insert(method->name()).second) << name;
    EXPECT_TRUE(titles.insert(method->title()).second) << name;
    EXPECT_FALSE(method->summary().empty()) << name;
  }
  EXPECT_EQ(FindMethod(static_cast<CacheMethod>(names.size())), nullptr);
  EXPECT_EQ(FindMethod(static_cast<CacheMethod>(-1)), nullptr);
}

}  // namespace
}  // namespace tensorcache::methods
