#include "kernels/read_norm/read_norm_ref.h"

#include <cmath>
#include <vector>

namespace tensorcache {
namespace {

// r of one row.
template <class Real>
double InverseRoot(const Real* x, int64_t D, const Real* c, int64_t h) {
  double square = 0;
  for (int64_t i = 0; i < D; ++i) square += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  const double floor = c != nullptr ? static_cast<double>(c[h]) * static_cast<double>(c[h]) : kReadNormFloor;
  const double sum = square / static_cast<double>(D) + floor;
  return sum == 0 ? 0 : 1 / std::sqrt(sum);
}

}  // namespace

template <class Real>
void ReadNormForwardReference(const ReadNormForwardArgs<Real>& args) {
  const ReadNormShape& n = args.shape;
  for (int64_t b = 0; b < n.B; ++b) {
    for (int64_t h = 0; h < n.H; ++h) {
      for (int64_t t = 0; t < n.T; ++t) {
        const Real* x = args.x.At(b, h, t);
        const double r = InverseRoot(x, n.D, args.c, h);
        Real* y = args.y.At(b, h, t);
        for (int64_t i = 0; i < n.D; ++i) y[i] = static_cast<Real>(args.gamma[h * n.D + i] * (r * x[i]));
      }
    }
  }
}

template <class Real>
void ReadNormBackwardReference(const ReadNormBackwardArgs<Real>& args) {
  const ReadNormShape& n = args.shape;
  for (int64_t b = 0; b < n.B; ++b) {
    for (int64_t h = 0; h < n.H; ++h) {
      const Real* gamma = args.gamma + h * n.D;
      std::vector<double> d_gamma(static_cast<size_t>(n.D), 0.0);
      double d_c = 0;
      for (int64_t t = 0; t < n.T; ++t) {
        const Real *x = args.x.At(b, h, t), *d_y = args.d_y.At(b, h, t);
        const double r = InverseRoot(x, n.D, args.c, h);
        double sum_gh = 0;
        for (int64_t i = 0; i < n.D; ++i) {
          sum_gh += static_cast<double>(gamma[i]) * d_y[i] * (r * x[i]);
          d_gamma[static_cast<size_t>(i)] += d_y[i] * (r * x[i]);
        }
        if (args.c != nullptr) d_c += -static_cast<double>(args.c[h]) * r * r * sum_gh;
        if (!args.d_x) continue;
        Real* d_x = args.d_x.At(b, h, t);
        for (int64_t i = 0; i < n.D; ++i) {
          const double g = static_cast<double>(gamma[i]) * d_y[i];
          d_x[i] = static_cast<Real>(r * (g - r * x[i] * sum_gh / static_cast<double>(n.D)));
        }
      }
      const int64_t item = b * n.H + h;
      for (int64_t i = 0; i < n.D && args.d_gamma != nullptr; ++i) {
        args.d_gamma[item * n.D + i] = static_cast<Real>(d_gamma[static_cast<size_t>(i)]);
      }
      if (args.d_c != nullptr) args.d_c[item] = static_cast<Real>(d_c);
    }
  }
}

template void ReadNormForwardReference(const ReadNormForwardArgs<float>&);
template void ReadNormForwardReference(const ReadNormForwardArgs<double>&);
template void ReadNormBackwardReference(const ReadNormBackwardArgs<float>&);
template void ReadNormBackwardReference(const ReadNormBackwardArgs<double>&);

}  // namespace tensorcache
