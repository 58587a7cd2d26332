#include "kernels/matmul/matmul_ref.h"

namespace tensorcache {
namespace {

// y[t, o] = sum_i x[t, i] weight(o, i)
template <class Weight>
void Multiply(const LinearArgs& args, const Weight& weight) {
  for (int64_t t = 0; t < args.n; ++t) {
    for (int64_t o = args.begin; o < args.end; ++o) {
      double sum = 0;
      for (int64_t i = 0; i < args.in; ++i) sum += static_cast<double>(args.x[t * args.x_stride + i]) * weight(o, i);
      args.y[t * args.y_stride + o] = static_cast<float>(sum);
    }
  }
}

}  // namespace

void LinearReference(const Fp32Weights& weights, const LinearArgs& args) {
  Multiply(args, [&](int64_t o, int64_t i) { return static_cast<double>(weights.data[o * weights.stride + i]); });
}

void LinearReference(const Bf16Weights& weights, const LinearArgs& args) {
  Multiply(args,
           [&](int64_t o, int64_t i) { return static_cast<double>(Bf16ToFp32(weights.data[o * weights.stride + i])); });
}

void LinearReference(const Int8Weights& weights, const LinearArgs& args) {
  Multiply(args, [&](int64_t o, int64_t i) {
    const double scale = weights.scales[o * weights.scale_stride + i / weights.group];
    return static_cast<double>(weights.data[o * weights.stride + i]) * scale;
  });
}

void GemmReference(const GemmArgs& args) {
  for (int64_t row = 0; row < args.m; ++row) {
    for (int64_t col = args.begin; col < args.end; ++col) {
      double sum = 0;
      for (int64_t i = 0; i < args.k; ++i) {
        const double a = args.transpose_a ? args.a[i * args.a_stride + row] : args.a[row * args.a_stride + i];
        const double b = args.transpose_b ? args.b[col * args.b_stride + i] : args.b[i * args.b_stride + col];
        sum += a * b;
      }
      float& c = args.c[row * args.c_stride + col];
      c = static_cast<float>(args.alpha * sum + (args.beta == 0 ? 0.0 : static_cast<double>(args.beta) * c));
    }
  }
}

}  // namespace tensorcache
