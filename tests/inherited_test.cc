// The program under what it inherits: streams that take nothing, limits of file size and address space.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "tests/run_testing.h"

namespace tensorcache {
namespace {

// A descriptor for the test; closed at its end.
class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) { EXPECT_GE(number, 0); }
  Descriptor(const Descriptor&) = delete;
  ~Descriptor() { close(number_); }
  operator int() const { return number_; }  // NOLINT(google-explicit-constructor)

 private:
  const int number_;
};

int Full() { return open("/dev/full", O_WRONLY | O_CLOEXEC); }

// A pipe that nobody reads any more.
int Broken() {
  int ends[2] = {-1, -1};
  EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
  close(ends[0]);
  return ends[1];
}

constexpr rlim_t kMebibyte = 1 << 20;

bool AddressSpaceCanBeLimited() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return false;  // they map terabytes
#else
  return true;
#endif
}

class InheritedTest : public RunTest {
 protected:
  // Commands whose purpose is what they print.
  std::vector<Args> Printing() {
    const std::string model = ByteModel();
    return {{"--version"},
            {"--help"},
            {"generate", "--help"},
            {"info", model},
            {"generate", "--model", model, "--prompt", "x", "--max-tokens", "3"},
            {"tokenizer", "encode", "text", "--tokenizer", "bytes"},
            {"tokenizer", "decode", "65", "--tokenizer", "bytes"}};
  }
  static void ExpectOneLine(const std::string& text, const std::string& what) {
    EXPECT_TRUE(text.starts_with("tensorcache: ")) << text;
    EXPECT_NE(text.find(what), text.npos) << text;
    EXPECT_EQ(text.find('\n'), text.size() - 1) << text;
  }
};

TEST_F(InheritedTest, WhatCannotBeWrittenToStandardErrorIsDropped) {
  const Args generate = {"generate", "--model", ByteModel(), "--prompt", "x", "--max-tokens", "9"};
  const std::string text = Run(generate).out;
  const Descriptor full(Full()), broken(Broken());
  for (const int err : {-1, static_cast<int>(full), static_cast<int>(broken)}) {
    EXPECT_EQ(Run({"frobnicate"}, "", {.err = err}).status, 2) << err;
    const Outcome outcome = Run(generate, "", {.err = err});
    EXPECT_EQ(outcome.status, 0) << err;
    EXPECT_EQ(outcome.out, text) << err;
  }
}

TEST_F(InheritedTest, StandardOutputThatTakesNothingIsAnError) {
  const Descriptor full(Full());
  for (const Args& args : Printing()) {
    const Outcome closed = Run(args, "", {.out = -1});
    EXPECT_EQ(closed.status, 1) << args[0];
    ExpectOneLine(closed.err, "standard output");
    const Outcome on_full = Run(args, "", {.out = full});
    EXPECT_EQ(on_full.status, 1) << args[0];
    ExpectOneLine(on_full.err, "No space left");
    EXPECT_EQ(Run(args, "", {.out = full, .err = full}).status, 1) << args[0];
    EXPECT_EQ(Run(args, "", {.out = -1, .err = -1}).status, 1) << args[0];
  }
}

TEST_F(InheritedTest, AReaderThatIsGoneEndsTheCommandQuietly) {
  const Descriptor broken(Broken());
  for (const Args& args : Printing()) {
    const Outcome outcome = Run(args, "", {.out = broken});
    EXPECT_EQ(outcome.status, 1) << args[0];
    EXPECT_EQ(outcome.err, "") << args[0];
  }
}

TEST_F(InheritedTest, AFileSizeLimitLeavesTheSessionAsItWas) {
  const std::string session = temp_.Path("session");
  const Args args = {"generate", "--model", ByteModel(), "--prompt", "x", "--max-tokens", "3", "--session", session};
  ASSERT_EQ(Run(args).status, 0);
  const std::string before = ReadAll(session);
  const Outcome outcome = Run(args, "", {.file_bytes = 1024});
  EXPECT_EQ(outcome.status, 1);
  ExpectOneLine(outcome.err, "File too large");
  EXPECT_EQ(ReadAll(session), before);
  for (const auto& entry : fs::directory_iterator(temp_.path())) {
    EXPECT_EQ(entry.path().string().find(".tmp-"), std::string::npos) << entry.path();
  }
}

TEST_F(InheritedTest, TooLittleAddressSpaceIsAnError) {
  if (!AddressSpaceCanBeLimited()) GTEST_SKIP();
  for (const rlim_t mebibytes : {80, 100, 150}) {
    Process process({"--version"}, temp_.path(), "program", {.address_bytes = mebibytes * kMebibyte});
    ASSERT_TRUE(WaitUntil([&] { return !process.Running(); })) << mebibytes;
    EXPECT_EQ(process.Wait(), 1) << mebibytes;
    ExpectOneLine(process.Err(), "address space");
  }
}

TEST_F(InheritedTest, TooLittleAddressSpaceForTrainingIsAnError) {
  if (!AddressSpaceCanBeLimited()) GTEST_SKIP();
  const std::string run = temp_.Path("run");
  for (const rlim_t mebibytes : {300, 400, 600, 700, 900}) {
    Process process({"train", "--config", "recall", "--set", "train.steps=1", "--out", run}, temp_.path(), "program",
                    {.address_bytes = mebibytes * kMebibyte});
    ASSERT_TRUE(WaitUntil([&] { return !process.Running(); })) << mebibytes;
    EXPECT_EQ(process.Wait(), 1) << mebibytes;
    ExpectOneLine(process.Err(), "address space");
    EXPECT_FALSE(fs::exists(run));
  }
}

TEST_F(InheritedTest, AsManyThreadsWorkAsThereIsRoomFor) {
  if (!AddressSpaceCanBeLimited()) GTEST_SKIP();
  const std::string prompt(100, 'x');  // long enough for BLAS
  const Args args = {"generate", "--model", ByteModel(), "--prompt", prompt, "--max-tokens", "9", "--quiet"};
  const std::string text = Run(args).out;
  for (const rlim_t mebibytes : {400, 2000}) {
    Process process(With(args, {"--threads", "1023"}), temp_.path(), "program",
                    {.address_bytes = mebibytes * kMebibyte});
    ASSERT_TRUE(WaitUntil([&] { return !process.Running(); })) << mebibytes;
    EXPECT_EQ(process.Wait(), 0) << process.Err();
    EXPECT_EQ(process.Out(), text);
    EXPECT_EQ(process.Err(), "");
  }
}

}  // namespace
}  // namespace tensorcache
