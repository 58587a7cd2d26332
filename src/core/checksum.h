// CRC-64 (the polynomial of ECMA-182, reflected; the "XZ" variant): finds every burst of up to 64 changed bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace tensorcache {

class Crc64 {
 public:
  void Add(std::span<const std::byte> bytes);
  uint64_t value() const { return ~state_; }

 private:
  uint64_t state_ = ~uint64_t{0};
};

}  // namespace tensorcache
