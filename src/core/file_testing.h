// A folder to write files in, for tests.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <iterator>
#include <string>

#include "core/file.h"
#include "testing/temp_folder.h"

namespace tensorcache {

class FileTest : public ::testing::Test {
 protected:
  std::string Path(const std::string& name) const { return folder_.Path(name); }
  void Put(const std::string& name, const std::string& content) const { folder_.Put(name, content); }
  std::string Get(const std::string& name) const { return ReadWholeFile(Path(name), 1 << 20).value(); }
  int64_t FileCount() const {
    return std::distance(std::filesystem::directory_iterator(directory_), std::filesystem::directory_iterator());
  }

  const testing::TempFolder folder_;
  const std::string directory_ = folder_.path();
};

}  // namespace tensorcache
