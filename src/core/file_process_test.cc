// Files that several processes write or read at a time, and what signals and kills do to them.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <string>

#include "core/file_testing.h"
#include "testing/child.h"

namespace tensorcache {
namespace {

namespace fs = std::filesystem;
using testing::Child;
using testing::InChild;

using FileProcessTest = FileTest;

// As a shell's <(...) is, and /dev/stdin.
TEST_F(FileProcessTest, PipesThatAreOpenAreReadToTheirEnd) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const std::string text(300'000, 'p');  // more than a pipe holds
  Child writer([&] {
    close(ends[0]);
    usleep(20'000);
    for (size_t at = 0; at < text.size(); at += 100'000) {
      if (write(ends[1], text.data() + at, 100'000) != 100'000) return 1;
    }
    return 0;
  });
  close(ends[1]);
  const auto read = ReadWholeFile("/dev/fd/" + std::to_string(ends[0]), 1 << 20);
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(*read, text);
  EXPECT_EQ(writer.Wait(), 0);
  EXPECT_EQ(*ReadWholeFile("/dev/fd/" + std::to_string(ends[0]), 1), "");  // nobody is left to write
  EXPECT_EQ(MappedFile::Open("/dev/fd/" + std::to_string(ends[0])).status().code(), StatusCode::kInvalidArgument);
  close(ends[0]);
}

// In a child process: a signal, handled, every 2 ms; after 1000 of them the process ends with status 9.
void SendSignals() {
  static std::atomic<int> count = 0;
  struct sigaction action = {};
  action.sa_handler = [](int) {
    if (++count == 1000) _exit(9);
  };
  sigaction(SIGALRM, &action, nullptr);
  const itimerval often = {.it_interval = {.tv_sec = 0, .tv_usec = 2000}, .it_value = {.tv_sec = 0, .tv_usec = 2000}};
  setitimer(ITIMER_REAL, &often, nullptr);
}

TEST_F(FileProcessTest, AHandledSignalEndsTheWaitForAPipe) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const int code = InChild([&] {
    SendSignals();
    const Status status = ReadWholeFile("/dev/fd/" + std::to_string(ends[0]), 100).status();
    return status.code() == StatusCode::kIoError ? 0 : 1;
  });
  EXPECT_EQ(code, 0);
  close(ends[0]);
  close(ends[1]);
}

TEST_F(FileProcessTest, SignalsDoNotDisturbReadingAndWriting) {
  const std::string content(1 << 20, 's');
  const int code = InChild([&] {
    SendSignals();
    for (int i = 0; i < 20; ++i) {
      if (!WriteFileAtomically(Path("a"), content).ok()) return 1;
      if (ReadWholeFile(Path("a"), 1 << 20).value() != content) return 2;
    }
    return 0;
  });
  EXPECT_EQ(code, 0);
}

TEST_F(FileProcessTest, DyingHalfWayLeavesTheOldFile) {
  Put("a", "old");
  const int code = InChild([&] {
    auto file = AtomicFile::Create(Path("a"));
    if (!file.ok() || !file->Append("half of the").ok()) return 1;
    _exit(7);
  });
  EXPECT_EQ(code, 7);
  EXPECT_EQ(Get("a"), "old");
  ASSERT_TRUE(WriteFileAtomically(Path("a"), "new").ok());
  EXPECT_EQ(Get("a"), "new");
}

TEST_F(FileProcessTest, ManyAtOnceLeaveOneWholeFile) {
  constexpr size_t kBytes = 200'000;
  const auto write_often = [&](char letter) {
    return [this, letter] {
      for (int i = 0; i < 100; ++i) {
        auto file = AtomicFile::Create(Path("a"), {.durable = false});
        for (size_t written = 0; written < kBytes; written += kBytes / 10) {
          if (!file.ok() || !file->Append(std::string(kBytes / 10, letter)).ok()) return 1;
        }
        if (!file->Commit().ok()) return 2;
      }
      return 0;
    };
  };
  Put("a", std::string(kBytes, 'a'));
  Child first(write_often('b')), second(write_often('c'));
  for (int i = 0; i < 200; ++i) {
    const std::string content = Get("a");
    ASSERT_EQ(content.size(), kBytes);
    ASSERT_EQ(content.find_first_not_of(content[0]), std::string::npos);
  }
  EXPECT_EQ(first.Wait(), 0);
  EXPECT_EQ(second.Wait(), 0);
  EXPECT_EQ(FileCount(), 1);
}

class AbandonedTest : public FileProcessTest {
 protected:
  // As a process leaves it that is killed while it writes.
  void Abandon(const std::string& name) const {
    EXPECT_EQ(InChild([&] {
                auto file = AtomicFile::Create(Path(name));
                return file.ok() && file->Append("half of the").ok() ? (_exit(7), 0) : 1;
              }),
              7);
  }
  void MakeOld() const {
    for (const auto& entry : fs::directory_iterator(directory_)) {
      fs::last_write_time(entry, fs::file_time_type::clock::now() - std::chrono::hours(1));
    }
  }
};

TEST_F(AbandonedTest, TemporariesOfTheDeadGoWhenAProcessFirstWritesThere) {
  for (const char* name : {"a", "a", "b"}) Abandon(name);
  EXPECT_EQ(FileCount(), 3);
  Put("mine.tmp-1", "x");
  Put("mine.tmp-1-x", "x");
  Put(".tmp-1-2", "x");
  fs::create_directory(Path("folder.tmp-1-2"));
  fs::create_symlink("mine.tmp-1", Path("link.tmp-1-2"));
  MakeOld();
  Abandon("c");
  EXPECT_EQ(FileCount(), 6) << "five that are no temporaries, and one that is new";
  // They may belong to another host that works on the same folder.
  EXPECT_EQ(InChild([&] { return WriteFileAtomically(Path("d"), "x").ok() ? 0 : 1; }), 0);
  EXPECT_EQ(FileCount(), 7);
}

TEST_F(AbandonedTest, TemporariesOfTheLivingStay) {
  auto file = AtomicFile::Create(Path("a"));
  ASSERT_TRUE(file.ok() && file->Append("x").ok());
  MakeOld();
  EXPECT_EQ(InChild([&] {
              RemoveAbandonedTemporaries(directory_, std::chrono::seconds(0));
              return WriteFileAtomically(Path("b"), "x").ok() ? 0 : 1;
            }),
            0);
  EXPECT_TRUE(file->Commit().ok());
  EXPECT_EQ(Get("a"), "x");
}

TEST_F(AbandonedTest, WhoAloneWritesToAFolderNeedNotWait) {
  Abandon("a");
  Put("b.tmp-1-2", "");  // perhaps its process has not locked it yet
  RemoveAbandonedTemporaries(directory_);
  EXPECT_EQ(FileCount(), 2);
  RemoveAbandonedTemporaries(directory_, std::chrono::seconds(0));
  EXPECT_EQ(FileCount(), 1);
  MakeOld();
  RemoveAbandonedTemporaries(directory_, std::chrono::seconds(0));
  EXPECT_EQ(FileCount(), 0);
}

}  // namespace
}  // namespace tensorcache
