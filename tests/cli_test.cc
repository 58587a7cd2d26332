// The program as a user meets it: what it prints, where, and its exit status.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "tensorcache/version.h"
#include "testing/temp_folder.h"

namespace tensorcache {
namespace {

struct Outcome {
  int exit_status;
  std::string out;
  std::string err;
};

std::string ReadAll(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

class CliTest : public ::testing::Test {
 protected:
  Outcome Run(const std::string& arguments, const std::string& environment = "LC_ALL=C") const {
    const auto out = folder_ / "stdout", err = folder_ / "stderr";
    const std::string command = environment + " '" TENSORCACHE_PROGRAM_PATH "' " + arguments + " >'" + out.string() +
                                "' 2>'" + err.string() + "'";
    const int status = std::system(command.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, ReadAll(out), ReadAll(err)};
  }

  // One line, in the program's voice.
  static void ExpectError(const Outcome& outcome, int exit_status, const std::string& message) {
    EXPECT_EQ(outcome.exit_status, exit_status);
    EXPECT_EQ(outcome.err.rfind("tensorcache: ", 0), 0u) << outcome.err;
    EXPECT_EQ(outcome.err.find('\n'), outcome.err.size() - 1) << outcome.err;
    EXPECT_NE(outcome.err.find(message), std::string::npos) << outcome.err;
  }

  const tensorcache::testing::TempFolder temp_;
  const std::filesystem::path folder_ = temp_.path();
};

TEST_F(CliTest, HelpListsTheCommands) {
  for (const char* arguments : {"--help", "-h", ""}) {
    const Outcome outcome = Run(arguments);
    EXPECT_EQ(outcome.exit_status, 0);
    EXPECT_EQ(outcome.err, "");
    for (const char* command : {"demo", "bench", "reproduce"}) {
      EXPECT_NE(outcome.out.find(command), std::string::npos) << command;
    }
  }
  EXPECT_NE(Run("reproduce capacity --help").out.find("--seeds"), std::string::npos);
  EXPECT_NE(Run("bench kernels --help").out.find("--only"), std::string::npos);
}

TEST_F(CliTest, VersionTellsBuildAndCpu) {
  const Outcome outcome = Run("--version");
  EXPECT_EQ(outcome.exit_status, 0);
  EXPECT_EQ(outcome.out.rfind("tensorcache " TENSORCACHE_VERSION " (commit ", 0), 0u) << outcome.out;
  for (const char* key : {"\nbuild: ", "\ncpu: ", "\nblas: ", "\ntorch: "}) {
    EXPECT_NE(outcome.out.find(key), std::string::npos) << key;
  }
}

TEST_F(CliTest, MistakesNameTheNearestAndExitWith2) {
  ExpectError(Run("reprodcue capacity"), 2, "did you mean 'reproduce'?");
  ExpectError(Run("reproduce capasity"), 2, "did you mean 'capacity'?");
  ExpectError(Run("reproduce capacity --sedes 3"), 2, "did you mean '--seeds'?");
  ExpectError(Run("bench kernels --jsno=x"), 2, "did you mean '--json'?");
  ExpectError(Run("bench kernels --only memory_scam"), 2, "did you mean 'memory_scan'?");
  ExpectError(Run("--verison"), 2, "did you mean '--version'?");
  ExpectError(Run("frobnicate"), 2, "see tensorcache --help");
}

TEST_F(CliTest, BadValuesExitWith2) {
  ExpectError(Run("reproduce capacity --seeds 0"), 2, "--seeds");
  ExpectError(Run("reproduce capacity --seeds -1"), 2, "--seeds");
  ExpectError(Run("reproduce capacity --seeds 1,,2"), 2, "--seeds");
  ExpectError(Run("reproduce capacity --seeds"), 2, "--seeds");
  ExpectError(Run("reproduce capacity extra"), 2, "'extra'");
  ExpectError(Run("bench kernels --seconds nan"), 2, "--seconds");
  ExpectError(Run("bench kernels --seconds soon"), 2, "--seconds");
}

TEST_F(CliTest, UnwritableFilesExitWith1) {
  ExpectError(Run("reproduce capacity --seeds 1 --json '" + (folder_ / "no/such/file").string() + "'"), 1, "no folder");
  ExpectError(Run("reproduce capacity --seeds 1 --json '" + folder_.string() + "'"), 1, "folder");
  ExpectError(Run("reproduce capacity --seeds 1 --json /dev/null/x"), 1, "/dev/null");
}

TEST_F(CliTest, CapacityWritesTwelveRows) {
  const auto file = folder_ / "capacity.json";
  const Outcome outcome = Run("reproduce capacity --seeds 2 --json '" + file.string() + "'");
  ASSERT_EQ(outcome.exit_status, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  EXPECT_NE(outcome.out.find("79.0 +- 18.2"), std::string::npos) << outcome.out;

  const auto json = nlohmann::json::parse(ReadAll(file));
  EXPECT_EQ(json["seeds"], (std::vector<int>{0, 1}));
  ASSERT_EQ(json["rows"].size(), 12u);
  for (const auto& row : json["rows"]) {
    ASSERT_EQ(row.size(), 6u) << row;
    EXPECT_GT(row["mean"].get<double>(), 1) << row;
    EXPECT_GE(row["std"].get<double>(), 0) << row;
    if (row["dim"] == 64 && row["regime"] == "random") {
      EXPECT_EQ(row["paper_mean"], 79.0);
      EXPECT_EQ(row["paper_std"], 18.2);
    }
  }
}

TEST_F(CliTest, JsonGoesThroughLinksAndDevices) {
  const auto file = folder_ / "file.json", link = folder_ / "link.json";
  std::ofstream(file) << "old";
  std::filesystem::create_symlink(file, link);
  ASSERT_EQ(Run("reproduce capacity --seeds 1 --json '" + link.string() + "'").exit_status, 0);
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  EXPECT_EQ(nlohmann::json::parse(ReadAll(file))["rows"].size(), 12u);

  const Outcome outcome = Run("reproduce capacity --seeds 1 --json /dev/stdout");
  ASSERT_EQ(outcome.exit_status, 0) << outcome.err;
  EXPECT_TRUE(std::filesystem::is_symlink("/dev/stdout"));
  EXPECT_EQ(nlohmann::json::parse(outcome.out.substr(outcome.out.find('{')))["rows"].size(), 12u);
}

TEST_F(CliTest, DemoKeepsToAsciiUnlessTheLocaleIsUtf8) {
  const Outcome ascii = Run("demo");
  EXPECT_EQ(ascii.exit_status, 0) << ascii.err;
  for (const char c : ascii.out) ASSERT_LT(static_cast<unsigned char>(c), 0x80);
  EXPECT_NE(Run("demo", "LC_ALL=C.UTF-8").out.find("█"), std::string::npos);
}

TEST_F(CliTest, FullStandardOutputIsAnError) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP();
  const int status = std::system("'" TENSORCACHE_PROGRAM_PATH "' --version >/dev/full 2>/dev/null");
  EXPECT_EQ(WEXITSTATUS(status), 1);
}

}  // namespace
}  // namespace tensorcache
