// A folder of a test's own, removed with everything in it at the end.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

namespace tensorcache::testing {

class TempFolder {
 public:
  TempFolder() {
    std::string pattern = ::testing::TempDir() + "/tensorcache_test.XXXXXX";
    path_ = mkdtemp(pattern.data());
  }
  ~TempFolder() {
    std::filesystem::permissions(path_, std::filesystem::perms::owner_all);  // a test may have taken them away
    std::filesystem::remove_all(path_);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string Path(std::string_view name) const { return path_ + "/" + std::string(name); }
  // Writes a file, with the folders on the way to it; returns its path.
  std::string Put(std::string_view name, std::string_view content) const {
    const std::string path = Path(name);
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    std::ofstream(path, std::ios::binary) << content;
    return path;
  }

 private:
  std::string path_;
};

}  // namespace tensorcache::testing
