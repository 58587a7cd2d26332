// The specification of the short convolution, in plain loops and double precision.
#include "kernels/short_conv/short_conv_ref.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace tensorcache {
namespace {

using Row = std::vector<double>;

// One (batch, head) item's inputs. Forward and backward arguments have the same names.
template <class Args>
struct Item {
  Item(const Args& args, int64_t item) : args(args), n(args.shape), b(item / n.H), h(item % n.H) {}

  // x_t, of the past if t < 0.
  double X(int64_t t, int64_t d) const {
    if (t >= 0) return static_cast<double>(args.x.At(b, h, t)[d]);
    return args.past ? static_cast<double>(args.past.At(b, h, t + n.taps - 1)[d]) : 0.0;
  }
  double W(int64_t j, int64_t d) const { return static_cast<double>(args.weight[(h * n.taps + j) * n.D + d]); }
  Row Z(int64_t t) const {
    Row z;
    for (int64_t d = 0; d < n.D; ++d) {
      double sum = X(t, d);
      for (int64_t j = 0; j < n.taps; ++j) sum += W(j, d) * X(t - j, d);
      z.push_back(sum);
    }
    return z;
  }

  const Args& args;
  const ShortConvShape& n;
  int64_t b, h;
};

double InverseLength(const Row& z) {
  double square = 0;
  for (const double v : z) square += v * v;
  return 1 / std::sqrt(square + 1e-12);
}

template <class Real>
void ForwardItem(const ShortConvForwardArgs<Real>& args, int64_t index) {
  const Item item(args, index);
  for (int64_t t = 0; t < args.shape.T; ++t) {
    const Row z = item.Z(t);
    const double r = args.shape.unit ? InverseLength(z) : 1;
    for (size_t d = 0; d < z.size(); ++d) args.y.At(item.b, item.h, t)[d] = static_cast<Real>(z[d] * r);
  }
}

// d_z of all tokens.
template <class Real>
std::vector<Row> MiddleGradients(const ShortConvBackwardArgs<Real>& args,
                                 const Item<ShortConvBackwardArgs<Real>>& item) {
  std::vector<Row> result;
  for (int64_t t = 0; t < args.shape.T; ++t) {
    const Real* d_y = args.d_y.At(item.b, item.h, t);
    Row d_z(d_y, d_y + args.shape.D);
    if (args.shape.unit) {
      const Row z = item.Z(t);
      const double r = InverseLength(z);
      double dot = 0;
      for (size_t d = 0; d < z.size(); ++d) dot += z[d] * r * d_z[d];
      for (size_t d = 0; d < z.size(); ++d) d_z[d] = r * (d_z[d] - z[d] * r * dot);
    }
    result.push_back(d_z);
  }
  return result;
}

template <class Real>
void BackwardItem(const ShortConvBackwardArgs<Real>& args, int64_t index) {
  const ShortConvShape& n = args.shape;
  const Item item(args, index);
  const std::vector<Row> d_z = MiddleGradients(args, item);
  const auto at = [&](int64_t t, int64_t d) { return d_z[static_cast<size_t>(t)][static_cast<size_t>(d)]; };
  const int64_t kept = std::max<int64_t>(0, n.taps - 1);  // rows of the past
  for (int64_t t = -kept; t < n.T; ++t) {
    const Rows<Real>& to = t < 0 ? args.d_past : args.d_x;
    if (!to) continue;
    for (int64_t d = 0; d < n.D; ++d) {
      double sum = t < 0 ? 0 : at(t, d);
      for (int64_t j = 0; j < n.taps; ++j) {
        if (0 <= t + j && t + j < n.T) sum += item.W(j, d) * at(t + j, d);
      }
      to.At(item.b, item.h, t < 0 ? t + kept : t)[d] = static_cast<Real>(sum);
    }
  }
  for (int64_t j = 0; j < n.taps && args.d_weight; ++j) {
    for (int64_t d = 0; d < n.D; ++d) {
      double sum = 0;
      for (int64_t t = 0; t < n.T; ++t) sum += at(t, d) * item.X(t - j, d);
      args.d_weight.At(item.b, item.h, j)[d] = static_cast<Real>(sum);
    }
  }
}

}  // namespace

template <class Real>
void ShortConvForwardReference(const ShortConvForwardArgs<Real>& args, int64_t begin_item, int64_t end_item) {
  for (int64_t item = begin_item; item < end_item; ++item) ForwardItem(args, item);
}

template <class Real>
void ShortConvBackwardReference(const ShortConvBackwardArgs<Real>& args, int64_t begin_item, int64_t end_item) {
  for (int64_t item = begin_item; item < end_item; ++item) BackwardItem(args, item);
}

template void ShortConvForwardReference(const ShortConvForwardArgs<float>&, int64_t, int64_t);
template void ShortConvForwardReference(const ShortConvForwardArgs<double>&, int64_t, int64_t);
template void ShortConvBackwardReference(const ShortConvBackwardArgs<float>&, int64_t, int64_t);
template void ShortConvBackwardReference(const ShortConvBackwardArgs<double>&, int64_t, int64_t);

}  // namespace tensorcache
