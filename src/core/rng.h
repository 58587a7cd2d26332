// Counter-based random numbers (Philox 4x32-10, Salmon et al. 2011): the n-th number of a stream is a pure function of
// (seed, stream, n). The same on every machine and with any number of threads; skipping ahead is free.
#pragma once

#include <array>
#include <cstdint>

namespace tensorcache {

// The block cipher itself: four 32-bit words from a 128-bit counter and a 64-bit key.
std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

// A position in the stream (seed, stream). Copyable; not thread-safe: give each thread or purpose its own stream.
class Rng {
 public:
  explicit Rng(uint64_t seed, uint64_t stream = 0) : seed_(seed), stream_(stream) {}

  uint32_t NextU32();
  uint64_t NextU64();
  // Uniform in [0, 1), 53 random bits.
  double UniformDouble();
  // Unbiased in [0, n); n > 0.
  uint64_t Below(uint64_t n);
  // Standard normal (Box-Muller in double; one pair of draws each, so that positions stay predictable).
  double Normal();

  // The number of 32-bit words drawn so far: save it, and Seek to it to continue the stream.
  uint64_t position() const { return position_; }
  void Seek(uint64_t position) { position_ = position; }

 private:
  uint64_t seed_;
  uint64_t stream_;
  uint64_t position_ = 0;
  uint64_t cached_block_ = ~uint64_t{0};
  std::array<uint32_t, 4> block_{};
};

}  // namespace tensorcache
