#include "kernels/rope/rope_ref.h"

#include <cmath>
#include <numbers>
#include <vector>

namespace tensorcache {

void FillRopeTableReference(int64_t rotary_dims, double base, std::span<const int64_t> positions, float* cos,
                            float* sin, const RopeScaling& scaling) {
  const int64_t pairs = rotary_dims / 2;
  for (size_t t = 0; t < positions.size(); ++t) {
    for (int64_t i = 0; i < pairs; ++i) {
      const long double exponent = -2.0L * static_cast<long double>(i) / static_cast<long double>(rotary_dims);
      const long double frequency = std::pow(static_cast<long double>(base), exponent);  // radians a token
      const double scale = RopeScaleOf(scaling, static_cast<double>(2 * std::numbers::pi_v<long double> / frequency));
      const long double angle = static_cast<long double>(positions[t]) * frequency * static_cast<long double>(scale);
      cos[static_cast<int64_t>(t) * pairs + i] = static_cast<float>(std::cos(angle));
      sin[static_cast<int64_t>(t) * pairs + i] = static_cast<float>(std::sin(angle));
    }
  }
}

void ApplyRopeReference(const RopeArgs& args) {
  const int64_t pairs = args.rotary_dims / 2;
  const bool half_split = args.pairing == RopePairing::kHalfSplit;
  std::vector<float> row(static_cast<size_t>(args.dims));
  for (int64_t b = 0; b < args.batch; ++b) {
    for (int64_t h = 0; h < args.heads; ++h) {
      for (int64_t t = 0; t < args.tokens; ++t) {
        const float* x = args.in.At(b, h, t);
        row.assign(x, x + args.dims);
        for (int64_t i = 0; i < pairs; ++i) {
          const int64_t first = half_split ? i : 2 * i;
          const int64_t second = half_split ? i + pairs : 2 * i + 1;
          const double c = args.cos.At(b, h, t)[i];
          const double s = args.inverse ? -args.sin.At(b, h, t)[i] : args.sin.At(b, h, t)[i];
          row[static_cast<size_t>(first)] = static_cast<float>(x[first] * c - x[second] * s);
          row[static_cast<size_t>(second)] = static_cast<float>(x[second] * c + x[first] * s);
        }
        float* y = args.out.At(b, h, t);
        for (int64_t d = 0; d < args.dims; ++d) y[d] = row[static_cast<size_t>(d)];
      }
    }
  }
}

}  // namespace tensorcache
