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

  // An experiment of a moment.
  std::string Capacity() const { return "reproduce capacity --quick --out '" + (folder_ / "out").string() + "'"; }

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
    for (const char* command : {"demo", "import", "export", "bench", "reproduce", "report", "serve"}) {
      EXPECT_NE(outcome.out.find(command), std::string::npos) << command;
    }
  }
  EXPECT_NE(Run("reproduce capacity --help").out.find("--seeds"), std::string::npos);
  EXPECT_EQ(Run("help").out, Run("--help").out);
  EXPECT_EQ(Run("help bench decode").out, Run("bench decode --help").out);
  EXPECT_EQ(Run("bench help decode").out, Run("bench decode --help").out);
  EXPECT_NE(Run("bench kernels --help").out.find("--only"), std::string::npos);
  for (const char* method :
       {"full           every key", "streaming_llm  the first `sinks`", "infini         the last"}) {
    EXPECT_NE(Run("generate --help").out.find(method), std::string::npos) << method;
  }
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
  ExpectError(Run("help reprodcue"), 2, "did you mean 'reproduce'?");
}

TEST_F(CliTest, BadValuesExitWith2) {
  ExpectError(Run("reproduce capacity --seeds -1"), 2, "--seeds");
  ExpectError(Run("reproduce capacity --seeds 1,,2"), 2, "--seeds");
  ExpectError(Run("reproduce capacity --seeds ''"), 2, "--seeds");
  ExpectError(Run("reproduce capacity --seeds 1,2,1"), 2, "--seeds has 1 twice");
  ExpectError(Run("reproduce capacity --set train.steps=3"), 2, "trains nothing");
  ExpectError(Run(Capacity() + " --json -"), 2, "/dev/stdout");
  ExpectError(Run("reproduce capacity --seeds"), 2, "--seeds");
  ExpectError(Run("reproduce capacity extra"), 2, "'extra'");
  ExpectError(Run("reproduce"), 2, "which experiment?");
  ExpectError(Run("reproduce capacity --quick --full"), 2, "--quick and --full");
  ExpectError(Run("reproduce all --json x.json"), 2, "--json");
  ExpectError(Run("bench kernels --seconds nan"), 2, "--seconds");
  ExpectError(Run("bench kernels --seconds soon"), 2, "--seconds");
}

// Of whichever command, whatever else is missing.
TEST_F(CliTest, NumbersThatAreNoneExitWith2) {
  struct Case {
    const char* command;
    std::vector<std::string> options;
  };
  const auto refuse = [&](const std::vector<Case>& cases, const std::vector<const char*>& values) {
    for (const auto& [command, options] : cases) {
      for (const std::string& option : options) {
        for (const char* value : values) {
          ExpectError(Run(command + (" " + option) + " '" + value + "'"), 2, option);
        }
      }
    }
  };
  const std::vector<Case> integers = {
      {"generate", {"--max-tokens", "--top-k", "--repetition-window", "--threads", "--window", "--sinks"}},
      {"eval", {"--starts", "--seed", "--threads", "--context", "--bins"}},
      {"serve",
       {"--port", "--max-batch", "--queue", "--max-tokens", "--block", "--state-ram", "--max-body", "--drain"}},
      {"bench decode", {"--threads", "--depth"}},
      {"tokenizer train", {"--vocab-size"}},
      {"reproduce", {"--jobs", "--seeds"}},
      {"demo", {"--steps", "--tokens"}}};
  const std::vector<Case> floats = {{"generate", {"--temperature", "--top-p", "--min-p", "--repetition-penalty"}},
                                    {"eval", {"--last"}},
                                    {"bench kernels", {"--seconds"}},
                                    {"bench decode", {"--seconds"}},
                                    {"tokenizer bench", {"--seconds"}}};
  refuse(integers, {"", "five", "5x", "0x5", "5.0", "nan", "inf", "1000000000000000000000"});
  refuse(floats, {"", "five", "5x", "nan", "-nan", "inf", "-infinity", "1e999"});
  refuse({{"generate", {"--seed"}}, {"eval", {"--seed"}}, {"reproduce", {"--seeds"}}}, {"-1", "-0"});
  refuse({{"eval", {"--context", "--bins"}}, {"reproduce", {"--seeds"}}}, {"64,,64", ",64", "64,", ",", "64 64"});
}

TEST_F(CliTest, OutputsThatCannotBeExitWith2) {
  ExpectError(Run(Capacity() + " --seeds 1 --json '" + (folder_ / "no/such/file").string() + "'"), 2, "no folder");
  ExpectError(Run(Capacity() + " --seeds 1 --json '" + folder_.string() + "'"), 2, "folder");
  ExpectError(Run(Capacity() + " --seeds 1 --json /dev/null/x"), 2, "/dev/null");
  for (const char* command : {"info model", "bench kernels", "eval --model model --data text", "bench decode",
                              "tokenizer bench text --tokenizer bytes"}) {
    ExpectError(Run(std::string(command) + " --json /no/such/file"), 2, "there is no folder '/no/such'");
  }
  ExpectError(Run("report results --out /no/such/file"), 2, "there is no folder '/no/such'");
}

TEST_F(CliTest, CapacityWritesItsTable) {
  const auto file = folder_ / "capacity.json";
  const Outcome outcome = Run(Capacity() + " --seeds 1,2 --json '" + file.string() + "'");
  ASSERT_EQ(outcome.exit_status, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  EXPECT_NE(outcome.out.find("[79.0+-18.2]"), std::string::npos) << outcome.out;
  for (const char c : outcome.out) ASSERT_LT(static_cast<unsigned char>(c), 0x80);  // the locale is C

  const auto json = nlohmann::json::parse(ReadAll(file));
  EXPECT_EQ(json["experiment"], "capacity");
  EXPECT_EQ(json["made"]["seeds"], (std::vector<int>{1, 2}));
  EXPECT_EQ(json["made"]["command"], "tensorcache reproduce capacity --quick --seeds 1,2");
  const auto& rows = json["tables"][0]["rows"];
  ASSERT_EQ(rows.size(), 4u);
  for (const auto& row : rows) {
    ASSERT_EQ(row["cells"].size(), 6u) << row;
    EXPECT_GT(row["cells"][0]["value"].get<double>(), 1) << row;
    EXPECT_GE(row["cells"][0]["std"].get<double>(), 0) << row;
  }
  EXPECT_EQ(rows[2]["label"], "64");
  EXPECT_EQ(rows[2]["cells"][2]["paper"], 79.0);
  EXPECT_EQ(rows[2]["cells"][2]["paper_std"], 18.2);
  EXPECT_EQ(ReadAll(file), ReadAll(folder_ / "out/capacity.json"));
}

TEST_F(CliTest, WhatWasMeasuredIsNotMeasuredAgainUnlessAsked) {
  ASSERT_EQ(Run(Capacity() + " --seeds 1,2").exit_status, 0);
  const std::string first = ReadAll(folder_ / "out/capacity.json");
  ASSERT_EQ(Run(Capacity() + " --seeds 1,2").exit_status, 0);
  EXPECT_EQ(ReadAll(folder_ / "out/capacity.json"), first);  // its time too
  ASSERT_EQ(Run(Capacity() + " --seeds 1,2 --again").exit_status, 0);
  EXPECT_NE(ReadAll(folder_ / "out/capacity.json"), first);
  // What was made otherwise is replaced only if asked.
  ExpectError(Run(Capacity() + " --seeds 3"), 2, "was made by `tensorcache reproduce capacity --quick --seeds 1,2`");
  ASSERT_EQ(Run(Capacity() + " --seeds 3 --again").exit_status, 0);
  EXPECT_NE(ReadAll(folder_ / "out/capacity.json").find("--seeds 3"), std::string::npos);
}

TEST_F(CliTest, JsonGoesThroughLinksAndDevices) {
  const auto file = folder_ / "file.json", link = folder_ / "link.json";
  std::ofstream(file) << "old";
  std::filesystem::create_symlink(file, link);
  ASSERT_EQ(Run(Capacity() + " --seeds 1 --json '" + link.string() + "'").exit_status, 0);
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  EXPECT_EQ(nlohmann::json::parse(ReadAll(file))["experiment"], "capacity");

  const Outcome outcome = Run(Capacity() + " --seeds 1 --json /dev/stdout");
  ASSERT_EQ(outcome.exit_status, 0) << outcome.err;
  EXPECT_TRUE(std::filesystem::is_symlink("/dev/stdout"));
  const size_t begin = outcome.out.find('{'), end = outcome.out.rfind('}');
  EXPECT_EQ(nlohmann::json::parse(outcome.out.substr(begin, end + 1 - begin))["experiment"], "capacity");
}

TEST_F(CliTest, FullStandardOutputIsAnError) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP();
  const int status = std::system("'" TENSORCACHE_PROGRAM_PATH "' --version >/dev/full 2>/dev/null");
  EXPECT_EQ(WEXITSTATUS(status), 1);
  // More than a buffer: the block that failed is gone when the program ends.
  const int longer = std::system("yes 65 | head -n 20000 | '" TENSORCACHE_PROGRAM_PATH
                                 "' tokenizer decode --tokenizer bytes >/dev/full 2>/dev/null");
  EXPECT_EQ(WEXITSTATUS(longer), 1);
}

TEST_F(CliTest, FilesWhoseNamesAreNotUtf8AreTold) {
  const Outcome outcome = Run("info '" + (folder_ / "m\xff").string() + "'");
  EXPECT_EQ(outcome.exit_status, 2);
  EXPECT_EQ(outcome.err.find("json.exception"), std::string::npos) << outcome.err;
}

TEST_F(CliTest, InputsThatAreNotThereExitWith2) {
  for (const char* arguments :
       {"generate --model /nowhere --prompt x", "eval --model /nowhere --data /nowhere", "info /nowhere",
        "report /nowhere", "export --model /nowhere --out x", "import --from /nowhere --out x",
        "tokenizer info /nowhere", "tokenizer bench /nowhere --tokenizer bytes",
        "tokenizer train --data /nowhere --vocab-size 300 --out x",
        "tokenizer encode --file /nowhere --tokenizer bytes"}) {
    ExpectError(Run(arguments), 2, "/nowhere");
  }
  ExpectError(Run("reproduce novels --quick --data /nowhere --out '" + (folder_ / "out").string() + "'"), 2,
              "/nowhere");
}

TEST_F(CliTest, ImportAndExportMistakesExitWith2) {
  const std::string folder = "'" + folder_.string() + "'", out = " --out '" + (folder_ / "out").string() + "'";
  ExpectError(Run("import --from " + folder), 2, "--out is required");
  ExpectError(Run("import --from /no/such/folder" + out), 2, "/no/such/folder");
  ExpectError(Run("import --from " + folder + out), 2, "no config.json, nor a model of llama2.c");
  std::ofstream(folder_ / "config.json") << R"({"architectures": ["MambaForCausalLM"]})";
  ExpectError(Run("import --from " + folder + out), 2, "the architecture 'MambaForCausalLM'");
  ExpectError(Run("export --model " + folder + out), 2, "not a checkpoint of tensorcache");
  ExpectError(Run("export --model " + folder + " --out " + folder), 2, "name another one");
}

TEST_F(CliTest, AFolderThatCannotBeMadeExitsWith2) {
  const std::string file = (folder_ / "file").string();
  std::ofstream(file) << "text";
  ExpectError(Run("tokenizer train --data '" + file + "' --vocab-size 300 --out '" + file + "/below'"), 2,
              "cannot make the folder");
}

// tensorcache tokenizer.

TEST_F(CliTest, TokenizerTrainsEncodesAndDecodes) {
  std::string text;
  for (int i = 0; i < 50; ++i) text += "the cat sat on the mat, " + std::to_string(i) + " times\n";
  std::filesystem::create_directories(folder_ / "data");
  std::ofstream(folder_ / "data/a.txt") << text;
  std::ofstream(folder_ / "data/b.txt") << "the dog\n";
  const std::string out = "'" + (folder_ / "made/tokenizer").string() + "'";
  const std::string train =
      "tokenizer train --vocab-size 270 --data '" + (folder_ / "data").string() + "' --out " + out;
  const Outcome trained = Run(train);
  ASSERT_EQ(trained.exit_status, 0) << trained.err;
  EXPECT_EQ(trained.err, "");
  for (const char* line :
       {"text        2 files, ", "vocabulary  270 tokens, learned in ", " bytes a token\n", "tokenizer.json\n"}) {
    EXPECT_NE(trained.out.find(line), std::string::npos) << trained.out;
  }
  ExpectError(Run(train), 2,
              "has a tokenizer already, tokenizer.json; name another folder, or replace it with --force");
  EXPECT_EQ(Run(train + " --force").exit_status, 0);

  const std::string tokenizer = " --tokenizer " + out;
  const Outcome numbers = Run("tokenizer encode 'the cat' " + tokenizer);
  ASSERT_EQ(numbers.exit_status, 0) << numbers.err;
  EXPECT_EQ(numbers.out.find('\n'), numbers.out.size() - 1);
  EXPECT_EQ(Run("tokenizer decode" + tokenizer + " " + numbers.out.substr(0, numbers.out.size() - 1)).out, "the cat");
  // Any bytes, through files and pipes.
  const std::string bytes("nul\0 \xFF\xC3 <|endoftext|>\r\n", 23), file = "'" + (folder_ / "bytes").string() + "'";
  std::ofstream(folder_ / "bytes") << bytes;
  const Outcome from_file = Run("tokenizer encode --file " + file + tokenizer);
  EXPECT_EQ(from_file.out, Run("tokenizer encode" + tokenizer + " <" + file).out);
  std::ofstream(folder_ / "numbers") << from_file.out;
  EXPECT_EQ(Run("tokenizer decode" + tokenizer + " <'" + (folder_ / "numbers").string() + "'").out, bytes);
  EXPECT_EQ(Run("tokenizer encode '<|endoftext|>' --special" + tokenizer).out, "269\n");

  const Outcome info = Run("tokenizer info " + out);
  EXPECT_EQ(info.exit_status, 0) << info.err;
  for (const char* line : {"byte-level BPE (GPT-2)\n", " 270 tokens\n", "end          269 '<|endoftext|>'\n"}) {
    EXPECT_NE(info.out.find(line), std::string::npos) << info.out;
  }
}

TEST_F(CliTest, TokenizerBenchWritesItsFigures) {
  std::ofstream(folder_ / "text") << "some text";
  const auto file = folder_ / "bench.json";
  const Outcome outcome = Run("tokenizer bench '" + (folder_ / "text").string() +
                              "' --tokenizer bytes --seconds 0.01 --json '" + file.string() + "'");
  ASSERT_EQ(outcome.exit_status, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("MB/s"), std::string::npos) << outcome.out;
  const auto json = nlohmann::json::parse(ReadAll(file));
  EXPECT_EQ(json["bytes"], 9);
  EXPECT_EQ(json["tokens"], 9);
  EXPECT_EQ(json["bytes_per_token"], 1.0);
  EXPECT_GT(json["encode"]["mb_per_second"].get<double>(), 0);
}

TEST_F(CliTest, TokenizerMistakesExitWith2) {
  ExpectError(Run("tokenizer encdoe"), 2, "did you mean 'encode'?");
  ExpectError(Run("tokenizer encode hello"), 2, "--tokenizer is required");
  ExpectError(Run("tokenizer encode hello --tokenizer byte"), 2, "there is no tokenizer 'byte'");
  ExpectError(Run("tokenizer encode hello --tokenizer bytes --file x"), 2, "both a text and --file");
  ExpectError(Run("tokenizer encode --tokenizer bytes --file /no/such/file"), 2, "/no/such/file");
  ExpectError(Run("tokenizer encode one two --tokenizer bytes"), 2, "'two'");
  ExpectError(Run("tokenizer decode 65 six --tokenizer bytes"), 2, "'six' is not a token number");
  ExpectError(Run("tokenizer decode 99999999999 --tokenizer bytes"), 2, "'99999999999' is not a token number");
  ExpectError(Run("tokenizer decode 65,256 --tokenizer bytes"), 2, "there is no token 256");
  ExpectError(Run("tokenizer decode --tokenizer bytes -- -1"), 2, "there is no token -1");
  ExpectError(Run("tokenizer info"), 2, "T is required");
  std::ofstream(folder_ / "tokenizer.model") << "nothing";
  ExpectError(Run("tokenizer info '" + folder_.string() + "'"), 2, "tokenizer.model: not a SentencePiece model");
  const std::string text = "'" + (folder_ / "text").string() + "'", out = "'" + (folder_ / "out").string() + "'";
  std::ofstream(folder_ / "text") << "hello hello";
  const std::string train = "tokenizer train --data " + text;
  ExpectError(Run(train + " --out " + out), 2, "--vocab-size is required");
  ExpectError(Run(train + " --vocab-size 256 --out " + out), 2, "a vocabulary of 256 tokens is not possible");
  ExpectError(Run(train + " --vocab-size 300 --out " + text), 2, "is a file; name a folder");
  ExpectError(Run("tokenizer train --data /no/such/text --vocab-size 300 --out " + out), 2, "/no/such/text");
  ExpectError(Run(train + " --vocab-size 300 --out /dev/null/x"), 2, "/dev/null/x");
  ExpectError(Run("tokenizer bench " + text + " --tokenizer bytes --seconds 0"), 2, "--seconds");
}

}  // namespace
}  // namespace tensorcache
