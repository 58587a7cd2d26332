// Saved states with a checksum that is right, whatever else is in them.
#pragma once

#include <string>
#include <string_view>

#include "core/checksum.h"
#include "tests/fuzz/driver.h"

namespace tensorcache::fuzz {

// The file of a state without its last eight bytes.
inline std::string Sealed(std::string_view state) {
  Crc64 checksum;
  checksum.Add(std::as_bytes(std::span(state)));
  return std::string(state) + Raw(checksum.value());
}

// What Sealed makes this file of.
inline std::string Unsealed(const std::string& file) {
  TC_CHECK(file.size() > 8);
  std::string state = file.substr(0, file.size() - 8);
  TC_CHECK(Sealed(state) == file);  // the format is as it is taken for here
  return state;
}

}  // namespace tensorcache::fuzz
