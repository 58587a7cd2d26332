// Rotary position embedding. Each pair i < R/2 of a row is turned by the angle position * base^(-2i/R):
//
//   y_a = x_a cos - x_b sin        half-split:  (a, b) = (i, i + R/2)
//   y_b = x_b cos + x_a sin        interleaved: (a, b) = (2i, 2i + 1)
//
// The columns from R to D are copied. The inverse turns by the opposite angle; since a rotation's transpose is its
// inverse, it is also the gradient: dx = inverse rotation of dy.
//
// A table of cosines and sines is made once per token and shared by all layers and heads.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "tensorcache/choices.h"
#include "tensorcache/kernels/rows.h"
#include "tensorcache/status.h"

namespace tensorcache {

inline constexpr int64_t kMaxRotaryDims = 256;

// base^(-2i/R) / (2 pi) in turns, as fractions of 2^128: hi * 2^64 + lo. A position times it, modulo 2^128, is the
// angle modulo one turn without any rounding.
struct RopeFrequencies {
  int64_t pairs = 0;  // R / 2
  std::array<uint64_t, kMaxRotaryDims / 2> hi;
  std::array<uint64_t, kMaxRotaryDims / 2> lo;
};

// `rotary_dims` = R: even, 2 to kMaxRotaryDims. `base` > 1. Costs about a microsecond a pair.
Result<RopeFrequencies> MakeRopeFrequencies(int64_t rotary_dims, double base, const RopeScaling& scaling = {});

// What `scaling` makes of a pair that turns once in `wavelength` tokens: its frequency is multiplied by this.
//   linear: 1 / factor.   llama3, L the original context: 1 / factor for waves longer than L / low_freq_factor, 1 for
//   those shorter than L / high_freq_factor, and (1 - s) / factor + s between, s = (L / wave - low) / (high - low).
double RopeScaleOf(const RopeScaling& scaling, double wavelength);

// NTK-aware base for contexts `scale` times the trained length: base * scale^(R / (R - 2)). It leaves the highest
// frequency as it is and divides the lowest by `scale`. Exactly `base` for a scale of 1.
double NtkAwareBase(double base, double scale, int64_t rotary_dims);

// cos and sin, both [tokens, pairs], of the given positions; any int64 position, negative ones too. Correctly rounded
// but for about one value in ten thousand, which is one ulp off. About 5 ns a pair.
void FillRopeTable(const RopeFrequencies& frequencies, std::span<const int64_t> positions, float* cos, float* sin);
// Of positions first, first + 1, ...
void FillRopeTable(const RopeFrequencies& frequencies, int64_t first, int64_t tokens, float* cos, float* sin);

struct RopeArgs {
  Rows<const float> in;  // (batch, heads, tokens) rows of D
  Rows<float> out;       // may be `in` itself (same data and strides); else must not overlap it
  int64_t batch = 1;
  int64_t heads = 1;
  int64_t tokens = 0;
  int64_t dims = 0;         // D
  int64_t rotary_dims = 0;  // R <= D, even
  // Rows of R/2. A stride of 0 shares the table: {.data = cos, .token = R / 2} has one row per token for all batches
  // and heads.
  Rows<const float> cos;
  Rows<const float> sin;
  RopePairing pairing = RopePairing::kHalfSplit;
  bool inverse = false;
};

void ApplyRope(const RopeArgs& args);

}  // namespace tensorcache
