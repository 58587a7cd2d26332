// What is no file, given to the program as one: pipes, sockets and devices are refused or, where a text may come through
// them, read; nothing waits for ever.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>

#include "tests/run_testing.h"

namespace tensorcache {
namespace {

constexpr long kWaitingCalls[] = {
    SYS_ppoll,
#ifdef SYS_poll
    SYS_poll,
#endif
};

class PipeTest : public RunTest {
 protected:
  void SetUp() override {
    model_ = ByteModel();
    for (const char* name : {"pipe", "pipe.json", "pipe.model", "pipe.bin"}) {
      ASSERT_EQ(mkfifo(temp_.Path(name).c_str(), 0600), 0);
    }
  }
  // A copy of the model, with a pipe or device in the place of one of its files.
  std::string ModelWith(const char* target, const std::string& file) const {
    const std::string folder = temp_.Path("with");
    fs::remove_all(folder);
    fs::copy(model_, folder);
    fs::remove(folder + "/" + file);
    fs::create_symlink(target, folder + "/" + file);
    return folder;
  }
  // One line, at once.
  void ExpectRefused(const Args& args) const {
    Process process(args, temp_.path());
    const bool ended = WaitUntil([&] { return !process.Running(); });
    EXPECT_TRUE(ended) << args[0] << " waits";
    if (!ended) return;
    EXPECT_EQ(process.Wait(), 2) << process.Err();
    EXPECT_TRUE(process.Err().starts_with("tensorcache: ")) << process.Err();
    EXPECT_EQ(process.Err().find('\n'), process.Err().size() - 1) << process.Err();
    const auto says = [&](const char* words) { return process.Err().find(words) != std::string::npos; };
    EXPECT_TRUE(says("not a regular file") || says("Is a directory") || says("is a folder") ||
                says("neither a file nor a folder"))
        << process.Err();
  }

  std::string model_;
};

TEST_F(PipeTest, WhatIsNoFileIsRefused) {
  const std::string pipe = temp_.Path("pipe"), out = temp_.Path("out"), json = temp_.Path("pipe.json");
  for (const std::string& file : {pipe, std::string("/dev/zero"), temp_.path()}) {
    ExpectRefused({"generate", "--model", model_, "--file", file});
    ExpectRefused({"generate", "--model", model_, "--prompt", "x", "--session", file});
    ExpectRefused({"tokenizer", "encode", "--tokenizer", "bytes", "--file", file});
  }
  ExpectRefused({"eval", "--model", model_, "--data", pipe});
  ExpectRefused({"tokenizer", "train", "--vocab-size", "300", "--data", pipe, "--out", out});
  ExpectRefused({"tokenizer", "info", json});
  ExpectRefused({"tokenizer", "info", temp_.Path("pipe.model")});
  ExpectRefused({"generate", "--model", model_, "--prompt", "x", "--tokenizer", json});
  ExpectRefused({"import", "--from", temp_.Path("pipe.bin"), "--out", out});
  for (const char* target : {pipe.c_str(), "/dev/zero"}) {
    for (const char* file : {"config.json", "model.safetensors"}) {
      const std::string model = ModelWith(target, file);
      ExpectRefused({"info", model});
      ExpectRefused({"generate", "--model", model, "--prompt", "x"});
      if (file == std::string("config.json")) ExpectRefused({"import", "--from", model, "--out", out});
      ExpectRefused({"export", "--model", model, "--out", out});
    }
  }
  EXPECT_FALSE(fs::exists(out));
}

TEST_F(PipeTest, ATextMayComeThroughAnOpenPipe) {
  const Args encode = {"tokenizer", "encode", "--tokenizer", "bytes", "--file", "/dev/stdin"};
  EXPECT_EQ(Run(encode, "abc").out, "97 98 99\n");
  const Args generate = {"--model", model_, "--max-tokens", "5", "--file"};
  const std::string text(100, 'a');
  temp_.Put("text", text);
  const std::string expected = Generate(With(generate, {temp_.Path("text")}));
  EXPECT_EQ(Generate(With(generate, {"/dev/stdin"}), text), expected);
  if (std::system("command -v bash >/dev/null") != 0) GTEST_SKIP() << "there is no bash";
  const std::string command = "bash -c \"'" TENSORCACHE_PROGRAM_PATH
                              "' tokenizer encode --tokenizer bytes --file <(sleep 0.1; printf abc)\" >'" +
                              temp_.Path("printed") + "'";
  EXPECT_EQ(std::system(command.c_str()), 0);
  EXPECT_EQ(ReadAll(temp_.Path("printed")), "97 98 99\n");
}

// Whether the process waits for input, as the system sees it.
bool IsWaiting(pid_t pid) {
  long call = -1;
  std::istringstream(ReadAll("/proc/" + std::to_string(pid) + "/syscall")) >> call;
  return std::ranges::find(kWaitingCalls, call) != std::end(kWaitingCalls);
}

TEST_F(PipeTest, ASignalEndsTheWaitForAText) {
  for (const Args& args : {Args{"generate", "--model", model_, "--file", "/dev/stdin"},
                           Args{"tokenizer", "encode", "--tokenizer", "bytes", "--file", "/dev/stdin"}}) {
    Process process(args, temp_.path());  // its input stays open
    ASSERT_TRUE(WaitUntil([&] { return IsWaiting(process.pid()); }));
    process.Signal(SIGTERM);
    EXPECT_TRUE(WaitUntil([&] { return !process.Running(); })) << args[0];
  }
}

}  // namespace
}  // namespace tensorcache
