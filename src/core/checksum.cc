#include "core/checksum.h"

#include <array>
#include <bit>
#include <cstring>

namespace tensorcache {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr uint64_t kPolynomial = 0xC96C5795D7870F42;
constexpr int kSlices = 8;  // bytes that are looked up at a time

// tables[s][b]: what byte b does to the checksum s bytes later.
using Tables = std::array<std::array<uint64_t, 256>, kSlices>;

constexpr Tables MakeTables() {
  Tables tables{};
  for (uint64_t byte = 0; byte < 256; ++byte) {
    uint64_t value = byte;
    for (int bit = 0; bit < 8; ++bit) value = value & 1 ? value >> 1 ^ kPolynomial : value >> 1;
    tables[0][byte] = value;
  }
  for (size_t slice = 1; slice < kSlices; ++slice) {
    for (size_t byte = 0; byte < 256; ++byte) {
      const uint64_t before = tables[slice - 1][byte];
      tables[slice][byte] = before >> 8 ^ tables[0][before & 255];
    }
  }
  return tables;
}
constexpr Tables kTables = MakeTables();

}  // namespace

void Crc64::Add(std::span<const std::byte> bytes) {
  uint64_t state = state_;
  while (bytes.size() >= kSlices) {
    uint64_t word;
    std::memcpy(&word, bytes.data(), sizeof(word));
    word ^= state;
    state = 0;
    for (size_t i = 0; i < kSlices; ++i) state ^= kTables[kSlices - 1 - i][word >> 8 * i & 255];
    bytes = bytes.subspan(kSlices);
  }
  for (const std::byte byte : bytes) state = state >> 8 ^ kTables[0][(state ^ static_cast<uint64_t>(byte)) & 255];
  state_ = state;
}

}  // namespace tensorcache
