// CRC-64 as .xz files have it (the polynomial of ECMA-182, reflected): finds every burst of up to 64 changed bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace tensorcache {

class Crc64 {
 public:
  void Add(std::span<const std::byte> bytes);
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 0;
};

}  // namespace tensorcache
