#include "core/rng.h"

#include <cmath>
#include <numbers>

#include "core/check.h"

namespace tensorcache {

std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  constexpr uint64_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57;
  constexpr uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = kMultiplier0 * counter[0];
    const uint64_t product1 = kMultiplier1 * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(product0)};
    key[0] += kWeyl0;
    key[1] += kWeyl1;
  }
  return counter;
}

uint32_t Rng::NextU32() {
  const uint64_t block = position_ / 4;
  if (block != cached_block_) {
    block_ = Philox4x32({static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32),
                         static_cast<uint32_t>(stream_), static_cast<uint32_t>(stream_ >> 32)},
                        {static_cast<uint32_t>(seed_), static_cast<uint32_t>(seed_ >> 32)});
    cached_block_ = block;
  }
  return block_[position_++ % 4];
}

uint64_t Rng::NextU64() {
  const uint64_t low = NextU32();
  return low | static_cast<uint64_t>(NextU32()) << 32;
}

double Rng::UniformDouble() { return static_cast<double>(NextU64() >> 11) * 0x1p-53; }

uint64_t Rng::Below(uint64_t n) {
  TC_CHECK(n > 0);
  // Draws below `reject` would make some remainders more likely than others.
  const uint64_t reject = (~n + 1) % n;
  uint64_t draw = NextU64();
  while (draw < reject) draw = NextU64();
  return draw % n;
}

double Rng::Normal() {
  const double u = 1.0 - UniformDouble();  // in (0, 1]: the log is finite
  const double angle = 2.0 * std::numbers::pi * UniformDouble();
  return std::sqrt(-2.0 * std::log(u)) * std::cos(angle);
}

}  // namespace tensorcache
