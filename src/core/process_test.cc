#include "core/process.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <fstream>
#include <sstream>

#include "testing/temp_folder.h"

namespace tensorcache {
namespace {

class ProcessTest : public ::testing::Test {
 protected:
  Result<ChildProcess> Shell(const std::string& script, std::vector<std::string> environment = {}) {
    return ChildProcess::Start(
        {.arguments = {"/bin/sh", "-c", script}, .log = log_, .environment = std::move(environment)});
  }
  std::string Log() const {
    std::ostringstream text;
    text << std::ifstream(log_).rdbuf();
    return text.str();
  }

  const testing::TempFolder temp_;
  const std::string log_ = temp_.Path("log");
};

TEST_F(ProcessTest, KeepsWhatIsPrintedAndTellsTheStatus) {
  auto child = Shell("echo out; echo err >&2; exit 7");
  ASSERT_TRUE(child.ok()) << child.status().message();
  const ProcessExit exit = child->Wait();
  EXPECT_EQ(exit.status, 7);
  EXPECT_GT(exit.peak_bytes, 0);
  EXPECT_EQ(Log(), "out\nerr\n");
  EXPECT_FALSE(child->Poll().has_value());
}

TEST_F(ProcessTest, NewVariablesReplaceThoseOfThisProgram) {
  setenv("TENSORCACHE_PROCESS_TEST", "old", 1);
  auto child = Shell("echo $TENSORCACHE_PROCESS_TEST", {"TENSORCACHE_PROCESS_TEST=new"});
  unsetenv("TENSORCACHE_PROCESS_TEST");
  ASSERT_TRUE(child.ok());
  EXPECT_EQ(child->Wait().status, 0);
  EXPECT_EQ(Log(), "new\n");
}

TEST_F(ProcessTest, ASignalEndsItAndPollTellsOnce) {
  auto child = Shell("exec sleep 60");
  ASSERT_TRUE(child.ok());
  EXPECT_FALSE(child->Poll().has_value());
  child->Signal(SIGTERM);
  std::optional<ProcessExit> exit;
  while (!exit) exit = child->Poll();
  EXPECT_EQ(exit->status, 128 + SIGTERM);
  EXPECT_FALSE(child->Poll().has_value());
}

TEST_F(ProcessTest, IsKilledWhenNobodyWantsItAnyMore) {
  const auto start = std::chrono::steady_clock::now();
  {
    auto child = Shell("exec sleep 60");
    ASSERT_TRUE(child.ok());
    ChildProcess moved = std::move(*child);
    EXPECT_FALSE(moved.Poll().has_value());
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
}

TEST_F(ProcessTest, ProgramsAndLogsThatCannotBe) {
  EXPECT_EQ(ChildProcess::Start({.arguments = {"/does/not/exist"}, .log = log_, .environment = {}}).status().code(),
            StatusCode::kIoError);
  EXPECT_EQ(
      ChildProcess::Start({.arguments = {"/bin/true"}, .log = "/does/not/exist", .environment = {}}).status().code(),
      StatusCode::kIoError);
}

}  // namespace
}  // namespace tensorcache
