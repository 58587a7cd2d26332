#include "core/file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "core/file_testing.h"
#include "testing/child.h"

namespace tensorcache {
namespace {

namespace fs = std::filesystem;
using testing::InChild;

// In a child process: writes to files end at this size, as they do on a full disk.
bool LimitFileSize(rlim_t bytes) {
  const rlimit limit = {bytes, bytes};
  return std::signal(SIGXFSZ, SIG_IGN) != SIG_ERR && setrlimit(RLIMIT_FSIZE, &limit) == 0;
}

void ExpectMentions(const Status& status, const std::string& path, std::string_view reason) {
  EXPECT_NE(status.message().find(path), std::string::npos) << status.message();
  EXPECT_NE(status.message().find(reason), std::string::npos) << status.message();
}

TEST_F(FileTest, MapsContent) {
  Put("a", "hello");
  auto file = MappedFile::Open(Path("a"));
  ASSERT_TRUE(file.ok()) << file.status().message();
  const MappedFile moved = std::move(*file);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(moved.bytes().data()), moved.bytes().size()), "hello");
}

TEST_F(FileTest, MapsAnEmptyFile) {
  Put("empty", "");
  EXPECT_EQ(MappedFile::Open(Path("empty"))->bytes().size(), 0u);
}

TEST_F(FileTest, MappingErrorsAreClear) {
  const Status missing = MappedFile::Open(Path("none")).status();
  EXPECT_EQ(missing.code(), StatusCode::kNotFound);
  ExpectMentions(missing, Path("none"), "No such file or directory; check the path");
  const Status directory = MappedFile::Open(directory_).status();
  EXPECT_EQ(directory.code(), StatusCode::kInvalidArgument);
  ExpectMentions(directory, directory_, "Is a directory; give the path of a file");
  ASSERT_EQ(mkfifo(Path("pipe").c_str(), 0600), 0);
  ExpectMentions(MappedFile::Open(Path("pipe")).status(), Path("pipe"), "not a regular file");
}

TEST_F(FileTest, PermissionErrorsAreClear) {
  Put("secret", "x");
  fs::permissions(Path("secret"), fs::perms::none);
  fs::permissions(directory_,
                  fs::perms::owner_read | fs::perms::owner_exec | fs::perms::others_read | fs::perms::others_exec);
  const auto refused = [](const Status& status) {
    return status.code() == StatusCode::kIoError &&
           status.message().find("Permission denied; check the permissions") != std::string::npos;
  };
  const int code = InChild([&] {
    if (getuid() == 0 && setuid(65534) != 0) return 1;  // root may do anything
    if (!refused(MappedFile::Open(Path("secret")).status())) return 2;
    if (!refused(WriteFileAtomically(Path("new"), "x"))) return 3;
    return 0;
  });
  EXPECT_EQ(code, 0);
  EXPECT_EQ(FileCount(), 1);
}

TEST_F(FileTest, ReadsWholeFilesUpToALimit) {
  Put("a", "12345");
  EXPECT_EQ(*ReadWholeFile(Path("a"), 5), "12345");
  const Status status = ReadWholeFile(Path("a"), 4).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  ExpectMentions(status, Path("a"), "longer than the 4 bytes allowed");
  Put("big", std::string(1'000'000, 'b'));
  EXPECT_EQ(ReadWholeFile(Path("big"), 1 << 20)->size(), 1'000'000u);
  EXPECT_EQ(ReadWholeFile(directory_, 10).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(ReadWholeFile(Path("none"), 10).status().code(), StatusCode::kNotFound);
}

// Each of them could be waited for, or read, for ever.
TEST_F(FileTest, OnlyFilesAreRead) {
  ASSERT_EQ(mkfifo(Path("pipe").c_str(), 0600), 0);
  const int socket_fd = socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = ""};
  ASSERT_LT(Path("socket").size(), sizeof(address.sun_path));
  std::strcpy(address.sun_path, Path("socket").c_str());
  ASSERT_EQ(bind(socket_fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  for (const std::string& path : {Path("pipe"), Path("socket"), std::string("/dev/zero"), std::string("/dev/null")}) {
    const int code = InChild([&] {
      alarm(10);  // ends the process
      const Status read = ReadWholeFile(path, int64_t{1} << 40).status(), mapped = MappedFile::Open(path).status();
      for (const Status& status : {read, mapped}) {
        if (status.code() != StatusCode::kInvalidArgument) return 1;
        if (status.message() != "cannot open '" + path + "': not a regular file; give the path of a file") return 2;
      }
      return 0;
    });
    EXPECT_EQ(code, 0) << path;
  }
  close(socket_fd);
}

TEST_F(FileTest, WritesInChunksAndReplacesOnCommit) {
  Put("a", "old");
  auto file = AtomicFile::Create(Path("a"));
  ASSERT_TRUE(file.ok()) << file.status().message();
  ASSERT_TRUE(file->Append("new ").ok());
  ASSERT_TRUE(file->Append("content").ok());
  EXPECT_EQ(Get("a"), "old");
  ASSERT_TRUE(file->Commit().ok());
  EXPECT_EQ(Get("a"), "new content");
  EXPECT_EQ(FileCount(), 1);
}

TEST_F(FileTest, WithoutCommitNothingChanges) {
  Put("a", "old");
  {
    auto file = AtomicFile::Create(Path("a"));
    ASSERT_TRUE(file->Append("new").ok());
    EXPECT_EQ(FileCount(), 2);
    const AtomicFile moved = std::move(*file);
  }
  EXPECT_EQ(Get("a"), "old");
  EXPECT_EQ(FileCount(), 1);
}

TEST_F(FileTest, RelativePathsWork) {
  const fs::path before = fs::current_path();
  fs::current_path(directory_);
  EXPECT_TRUE(WriteFileAtomically("relative", "x").ok());
  fs::current_path(before);
  EXPECT_EQ(Get("relative"), "x");
}

TEST_F(FileTest, WritingIntoNothingOrOntoADirectoryFails) {
  const Status missing = WriteFileAtomically(Path("none/a"), "x");
  EXPECT_EQ(missing.code(), StatusCode::kNotFound);
  ExpectMentions(missing, Path("none/a"), "No such file or directory");
  EXPECT_EQ(WriteFileAtomically(directory_, "x").code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(FileCount(), 0);
}

TEST_F(FileTest, PipesAndDevicesAreNotReplaced) {
  ASSERT_EQ(mkfifo(Path("pipe").c_str(), 0600), 0);
  fs::create_symlink("pipe", Path("link"));
  for (const char* name : {"pipe", "link"}) {
    const Status status = WriteFileAtomically(Path(name), "text");
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find("not a regular file"), std::string::npos) << status.message();
  }
  EXPECT_TRUE(fs::is_fifo(Path("pipe")));
  EXPECT_EQ(FileCount(), 2);
}

TEST_F(FileTest, FailedWriteLeavesTheOldFile) {
  Put("a", "old");
  const int code = InChild([&] {
    if (!LimitFileSize(1000)) return 1;
    auto file = AtomicFile::Create(Path("a"));
    if (!file.ok() || !file->Append(std::string(900, 'x')).ok()) return 2;
    const Status status = file->Append(std::string(900, 'x'));
    if (status.code() != StatusCode::kIoError) return 3;
    if (status.message().find("what was there before is unchanged") == std::string::npos) return 4;
    if (FileCount() != 1) return 5;  // the temporary is gone
    if (file->Append("more").message() != status.message() || file->Commit().message() != status.message()) return 6;
    return 0;
  });
  EXPECT_EQ(code, 0);
  EXPECT_EQ(Get("a"), "old");
  EXPECT_EQ(FileCount(), 1);
}

TEST_F(FileTest, FullDiskIsAnErrorThatSaysSo) {
  const std::string mount = "mount -t tmpfs -o size=64k tmpfs '" + directory_ + "' 2>/dev/null";
  if (std::system(mount.c_str()) != 0) GTEST_SKIP() << "cannot mount a tmpfs";
  Put("a", "old");
  const Status status = WriteFileAtomically(Path("a"), std::string(1 << 20, 'x'));
  EXPECT_EQ(status.code(), StatusCode::kIoError);
  ExpectMentions(status, Path("a"), "No space left on device; free some space (what was there before is unchanged)");
  EXPECT_EQ(Get("a"), "old");
  EXPECT_EQ(FileCount(), 1);
  EXPECT_EQ(std::system(("umount '" + directory_ + "'").c_str()), 0);
}

TEST_F(FileTest, WithoutTheDiskItIsStillAllOrNothing) {
  Put("a", "old");
  {
    auto file = AtomicFile::Create(Path("a"), {.durable = false});
    ASSERT_TRUE(file.ok() && file->Append("new").ok());
  }
  EXPECT_EQ(Get("a"), "old");
  ASSERT_TRUE(WriteFileAtomically(Path("a"), "new", {.durable = false}).ok());
  EXPECT_EQ(Get("a"), "new");
  EXPECT_EQ(FileCount(), 1);
}

TEST_F(FileTest, AppendedPiecesAreWholeOrNotThere) {
  const int code = InChild([&] {
    if (!LimitFileSize(1000)) return 1;
    auto file = AppendedFile::Open(Path("log"));
    if (!file.ok() || !file->Append(std::string(600, 'a')).ok()) return 2;
    const Status status = file->Append(std::string(600, 'b'));
    if (status.code() != StatusCode::kIoError) return 3;
    if (status.message().find("File too large; raise the file size limit") == std::string::npos) return 4;
    return file->Append(std::string(400, 'c')).ok() ? 0 : 5;
  });
  EXPECT_EQ(code, 0);
  EXPECT_EQ(Get("log"), std::string(600, 'a') + std::string(400, 'c'));
  auto again = AppendedFile::Open(Path("log"));
  ASSERT_TRUE(again.ok() && again->Append("d").ok());
  EXPECT_EQ(Get("log").size(), 1001u);
  ASSERT_EQ(mkfifo(Path("pipe").c_str(), 0600), 0);
  EXPECT_EQ(AppendedFile::Open(Path("pipe")).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(AppendedFile::Open(directory_).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(AppendedFile::Open("/dev/null").status().code(), StatusCode::kInvalidArgument);
}

TEST_F(FileTest, ExistsIsFalseForWhatCannotBeLookedAt) {
  Put("a", "x");
  EXPECT_TRUE(Exists(Path("a")));
  EXPECT_TRUE(Exists(directory_));
  EXPECT_FALSE(Exists(Path("b")));
  EXPECT_FALSE(Exists(Path("a/below a file")));
  EXPECT_FALSE(Exists(""));
}

TEST_F(FileTest, FailedRenameRemovesTheTemporary) {
  auto file = AtomicFile::Create(Path("a"));
  ASSERT_TRUE(file->Append("x").ok());
  fs::create_directory(Path("a"));
  EXPECT_FALSE(file->Commit().ok());
  EXPECT_EQ(FileCount(), 1);
}

}  // namespace
}  // namespace tensorcache
