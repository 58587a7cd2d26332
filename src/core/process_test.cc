#include "core/process.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <cerrno>
#include <chrono>
#include <fstream>
#include <sstream>
#include <thread>

#include "core/file.h"
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
  const std::string file = temp_.Path("pid");
  pid_t pid = 0;
  {
    auto child = Shell("echo $$ >" + file + ".new; mv " + file + ".new " + file + "; exec sleep 60");
    ASSERT_TRUE(child.ok());
    ChildProcess moved = std::move(*child);
    EXPECT_FALSE(moved.Poll().has_value());
    while (!Exists(file)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::ifstream(file) >> pid;
    EXPECT_EQ(kill(pid, 0), 0);
  }
  EXPECT_NE(kill(pid, 0), 0);
  EXPECT_EQ(errno, ESRCH);
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
