#include "kernels/norm/activation_ref.h"

#include <cmath>
#include <numbers>

#include "core/check.h"
#include "core/scalar_math.h"

namespace tensorcache {
namespace {

struct Value {
  double f;
  double slope;  // f'(a)
};

Value Evaluate(Activation activation, double a) {
  switch (activation) {
    case Activation::kSilu: {
      const double s = Sigmoid(a);
      return {a * s, s + a * s * (1 - s)};
    }
    case Activation::kGelu: {
      const double distribution = std::erfc(-a / std::numbers::sqrt2) / 2;
      const double density = std::exp(-a * a / 2) / std::sqrt(2 * std::numbers::pi);
      return {a * distribution, distribution + a * density};
    }
    case Activation::kGeluTanh: {
      const double k = std::sqrt(2 / std::numbers::pi);
      const double u = k * (a + 0.044715 * a * a * a);
      const double du = k * (1 + 3 * 0.044715 * a * a);
      const double t = std::tanh(u);
      return {a * (1 + t) / 2, (1 + t) / 2 + a * (1 - t * t) / 2 * du};
    }
  }
  TC_CHECK(false);
}

}  // namespace

void GateReference(const GateArgs& args) {
  for (int64_t row = 0; row < args.rows; ++row) {
    for (int64_t i = 0; i < args.width; ++i) {
      const double f = Evaluate(args.activation, args.a[row * args.a_stride + i]).f;
      const double b = args.b != nullptr ? args.b[row * args.b_stride + i] : 1.0;
      args.y[row * args.y_stride + i] = static_cast<float>(f * b);
    }
  }
}

void GateBackwardReference(const GateBackwardArgs& args) {
  for (int64_t row = 0; row < args.rows; ++row) {
    for (int64_t i = 0; i < args.width; ++i) {
      const Value v = Evaluate(args.activation, args.a[row * args.a_stride + i]);
      const double b = args.b != nullptr ? args.b[row * args.b_stride + i] : 1.0;
      const double dy = args.dy[row * args.dy_stride + i];
      args.da[row * args.da_stride + i] = static_cast<float>(dy * b * v.slope);
      if (args.b != nullptr) args.db[row * args.db_stride + i] = static_cast<float>(dy * v.f);
    }
  }
}

}  // namespace tensorcache
