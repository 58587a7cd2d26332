#include "core/folder.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/file.h"
#include "testing/child.h"
#include "testing/temp_folder.h"

namespace tensorcache {
namespace {

namespace fs = std::filesystem;
using testing::Child;
using testing::InChild;

class FolderTest : public ::testing::Test {
 protected:
  std::string Path(const std::string& name) const { return temp_.Path(name); }
  std::vector<std::string> Names(const std::string& folder) const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().string());
    std::ranges::sort(names);
    return names;
  }
  std::string Get(const std::string& name) const { return ReadWholeFile(Path(name), 1 << 20).value(); }

  const testing::TempFolder temp_;
  const std::string folder_ = temp_.Path("folder");
};

// A child process that holds the lock when the constructor returns, until it is killed.
class Holder {
 public:
  explicit Holder(const std::string& folder) : child_([&] { return Hold(folder); }) {
    char byte;
    EXPECT_EQ(read(ready_.ends[0], &byte, 1), 1);
  }
  void Kill() {
    child_.Kill();
    child_.Wait();
  }

 private:
  struct Pipe {
    Pipe() { EXPECT_EQ(pipe(ends), 0); }
    ~Pipe() {
      close(ends[0]);
      close(ends[1]);
    }
    int ends[2];
  };
  int Hold(const std::string& folder) const {
    const auto lock = FolderLock::Take(folder);
    if (!lock.ok() || write(ready_.ends[1], "x", 1) != 1) return 1;
    while (true) pause();
  }

  Pipe ready_;
  Child child_;
};

TEST_F(FolderTest, OneProgramAtATimeHasTheLock) {
  Holder holder(folder_);
  const Status refused = FolderLock::Take(folder_).status();
  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(refused.message(),
            folder_ + ": another program writes to this folder; wait for it, or choose another folder");
  fs::create_symlink(folder_, Path("link"));
  EXPECT_FALSE(FolderLock::Take(Path("link"), FolderLock::Wait::kNo).ok());
  EXPECT_TRUE(FolderLock::Take(Path("other")).ok());
}

TEST_F(FolderTest, AKillGivesTheLockBack) {
  Holder holder(folder_);
  holder.Kill();
  EXPECT_EQ(Names(folder_), std::vector<std::string>{".lock"});
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(FolderLock::Take(folder_, FolderLock::Wait::kNo).ok());
  EXPECT_TRUE(Names(folder_).empty());
}

TEST_F(FolderTest, NothingIsLeftOfALock) {
  {
    const auto lock = FolderLock::Take(folder_);
    ASSERT_TRUE(lock.ok() && lock->excludes_others());
    EXPECT_EQ(Names(folder_), std::vector<std::string>{".lock"});
  }
  EXPECT_FALSE(fs::exists(folder_));
  {
    const auto lock = FolderLock::Take(folder_);
    temp_.Put("folder/file", "x");
  }
  EXPECT_EQ(Names(folder_), std::vector<std::string>{"file"});
  temp_.Put("file", "x");
  EXPECT_FALSE(FolderLock::Take(Path("file")).ok());
}

// Many that come and go: never two at a time.
TEST_F(FolderTest, LocksThatAreRemovedStillExclude) {
  const auto work = [&] {
    for (int done = 0; done < 200;) {
      const auto lock = FolderLock::Take(folder_, FolderLock::Wait::kNo);
      if (!lock.ok()) continue;
      // mkdir fails if somebody else is here.
      if (mkdir(Path("inside").c_str(), 0700) != 0 || rmdir(Path("inside").c_str()) != 0) return 1;
      ++done;
    }
    return 0;
  };
  Child first(work), second(work), third(work);
  EXPECT_EQ(first.Wait(), 0);
  EXPECT_EQ(second.Wait(), 0);
  EXPECT_EQ(third.Wait(), 0);
}

class ReplacementTest : public FolderTest {
 protected:
  static FileSet Set() { return {.names = {"key", "weights", "extra"}, .key = "key"}; }
  // A set: every file holds `text`; `extra` is not in every one.
  static Status Replace(const std::string& folder, const std::string& text, bool extra) {
    TC_ASSIGN_OR_RETURN(FolderReplacement replacement, FolderReplacement::Begin(folder, Set()));
    for (const char* name : {"weights", "key", "extra"}) {
      if (!extra && name == std::string("extra")) continue;
      TC_RETURN_IF_ERROR(WriteFileAtomically((replacement.staging() / name).string(), text));
    }
    return replacement.Commit();
  }
  void ExpectSet(const std::string& text, bool extra) const {
    EXPECT_EQ(Get("folder/key"), text);
    EXPECT_EQ(Get("folder/weights"), text);
    EXPECT_EQ(ReadWholeFile(folder_ + "/extra", 100).ok(), extra);
    EXPECT_EQ(extra ? Get("folder/extra") : text, text);
  }
  void PutOthers() const {
    temp_.Put("folder/notes", "mine");
    temp_.Put("folder/.git/objects/1", "object");
    temp_.Put("folder/.git/.lock", "of somebody else");
    fs::permissions(folder_ + "/.git", fs::perms::owner_all);
    fs::create_symlink("nowhere", folder_ + "/link");
  }
  void ExpectOthers() const {
    EXPECT_EQ(Get("folder/notes"), "mine");
    EXPECT_EQ(Get("folder/.git/objects/1"), "object");
    EXPECT_EQ(Get("folder/.git/.lock"), "of somebody else");
    EXPECT_EQ(fs::status(folder_ + "/.git").permissions(), fs::perms::owner_all);
    EXPECT_EQ(fs::read_symlink(folder_ + "/link"), "nowhere");
    EXPECT_EQ(fs::hard_link_count(folder_ + "/notes"), 1u);
  }
  ino_t Inode() const {
    struct stat info;
    EXPECT_EQ(stat(folder_.c_str(), &info), 0);
    return info.st_ino;
  }
};

TEST_F(ReplacementTest, MakesReplacesAndKeepsWhatIsNotItsOwn) {
  ASSERT_TRUE(Replace(folder_, "one", true).ok());
  ExpectSet("one", true);
  EXPECT_EQ(Names(folder_), (std::vector<std::string>{"extra", "key", "weights"}));
  PutOthers();
  fs::permissions(folder_, fs::perms(0750));
  const ino_t before = Inode();
  const Status status = Replace(folder_, "two", false);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_NE(Inode(), before) << "as a whole";
  ExpectSet("two", false);
  ExpectOthers();
  EXPECT_EQ(fs::status(folder_).permissions(), fs::perms(0750));
  EXPECT_EQ(Names(temp_.path()), std::vector<std::string>{"folder"});
}

TEST_F(ReplacementTest, ALinkToAFolderStaysALink) {
  ASSERT_TRUE(Replace(folder_, "one", true).ok());
  fs::create_symlink("folder", Path("link"));
  ASSERT_TRUE(Replace(Path("link"), "two", false).ok());
  EXPECT_TRUE(fs::is_symlink(Path("link")));
  ExpectSet("two", false);
}

// A folder in which somebody is, or that cannot be exchanged, stays the same folder.
TEST_F(ReplacementTest, OneByOneWhereItMustBe) {
  ASSERT_TRUE(Replace(folder_, "one", true).ok());
  PutOthers();
  const ino_t before = Inode();
  EXPECT_EQ(InChild([&] {
              fs::current_path(folder_ + "/.git");
              return Replace("..", "two", false).ok() ? 0 : 1;
            }),
            0);
  EXPECT_EQ(Inode(), before);
  ExpectSet("two", false);
  ExpectOthers();
  EXPECT_EQ(Names(folder_), (std::vector<std::string>{".git", "key", "link", "notes", "weights"}));
}

TEST_F(ReplacementTest, OneByOneOnAMountedFileSystem) {
  fs::create_directory(folder_);
  const std::string mount = "mount -t tmpfs -o size=1m tmpfs '" + folder_ + "' 2>/dev/null";
  if (std::system(mount.c_str()) != 0) GTEST_SKIP() << "cannot mount a tmpfs";
  EXPECT_TRUE(Replace(folder_, "one", true).ok());
  PutOthers();
  EXPECT_TRUE(Replace(folder_, "two", false).ok());
  ExpectSet("two", false);
  ExpectOthers();
  // Full: all stays as it was.
  EXPECT_FALSE(Replace(folder_, std::string(2 << 20, 'x'), false).ok());
  ExpectSet("two", false);
  EXPECT_EQ(Names(folder_), (std::vector<std::string>{".git", "key", "link", "notes", "weights"}));
  EXPECT_EQ(std::system(("umount '" + folder_ + "'").c_str()), 0);
}

TEST_F(ReplacementTest, OneByOneIfTheFolderAroundItCannotBeWrittenTo) {
  fs::create_directories(folder_);
  fs::permissions(folder_, fs::perms::all);
  fs::permissions(temp_.path(), fs::perms(0555));
  const int code = InChild([&] {
    if (getuid() == 0 && setuid(65534) != 0) return 1;  // root may do anything
    return Replace(folder_, "one", true).ok() && Replace(folder_, "two", false).ok() ? 0 : 2;
  });
  EXPECT_EQ(code, 0);
  ExpectSet("two", false);
}

TEST_F(ReplacementTest, WithoutCommitNothingChanges) {
  {
    auto replacement = FolderReplacement::Begin(folder_, Set());
    ASSERT_TRUE(replacement.ok());
    const FolderReplacement moved = std::move(*replacement);
    temp_.Put(moved.staging().lexically_relative(temp_.path()).string() + "/key", "x");
    EXPECT_FALSE(FolderReplacement::Begin(folder_, Set()).ok()) << "locked";
  }
  EXPECT_TRUE(Names(temp_.path()).empty());
  ASSERT_TRUE(Replace(folder_, "one", true).ok());
  {
    const auto replacement = FolderReplacement::Begin(folder_, Set());
  }
  ExpectSet("one", true);
  fs::remove(folder_ + "/extra");
  temp_.Put("folder/extra/in the way", "x");
  const Status status = Replace(folder_, "two", false);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Get("folder/key"), "one");
  EXPECT_EQ(Get("folder/extra/in the way"), "x");
}

TEST_F(ReplacementTest, WhatTheKilledLeftIsRemoved) {
  ASSERT_TRUE(Replace(folder_, "one", true).ok());
  for (const std::string& where : {temp_.path(), folder_}) {
    EXPECT_EQ(InChild([&] {
                fs::current_path(where);
                auto replacement = FolderReplacement::Begin(folder_, Set());
                if (!WriteFileAtomically((replacement->staging() / "key").string(), "x").ok()) return 1;
                _exit(7);
              }),
              7);
  }
  temp_.Put(".folder.tmp-mine/file", "x");  // no number
  ASSERT_TRUE(Replace(folder_, "two", true).ok());
  EXPECT_EQ(Names(temp_.path()), (std::vector<std::string>{".folder.tmp-mine", "folder"}));
  EXPECT_EQ(Names(folder_), (std::vector<std::string>{"extra", "key", "weights"}));
}

}  // namespace
}  // namespace tensorcache
