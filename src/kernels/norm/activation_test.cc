#include "kernels/norm/activation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numbers>
#include <string>
#include <vector>

#include "core/rng.h"
#include "kernels/norm/activation_ref.h"
#include "testing/kernel_testing.h"

namespace tensorcache {
namespace {

using testing::ForEachTarget;
using testing::RowBuffer;

constexpr Activation kActivations[] = {Activation::kSilu, Activation::kGelu, Activation::kGeluTanh};
constexpr double kEps = std::numeric_limits<float>::epsilon();

// f is a times a probability in [0, 1] with an absolute error of about 4 eps (see simd/math-inl.h), so f(a) b is off by
// some eps of |a b|; below the normal floats anything is flushed to 0.
constexpr double kUlps = 6;
constexpr double kTiny = 1e-36;

struct Data {
  Data(int64_t rows, int64_t width, Rng& rng, double scale)
      : a(1, 1, rows, width, 1), b(1, 1, rows, width, 2), dy(1, 1, rows, width, 3) {
    a.FillNormal(rng, scale);
    b.FillNormal(rng);
    dy.FillNormal(rng);
  }
  GateArgs Forward(Activation f, RowBuffer& y, bool gated) const {
    return {.activation = f,
            .rows = a.T,
            .width = a.D,
            .a = a.Row(0, 0, 0),
            .a_stride = a.D + a.pad,
            .b = gated ? b.Row(0, 0, 0) : nullptr,
            .b_stride = b.D + b.pad,
            .y = y.Row(0, 0, 0),
            .y_stride = y.D + y.pad};
  }
  GateBackwardArgs Backward(Activation f, RowBuffer& da, RowBuffer& db, bool gated) const {
    return {.activation = f,
            .rows = a.T,
            .width = a.D,
            .a = a.Row(0, 0, 0),
            .a_stride = a.D + a.pad,
            .b = gated ? b.Row(0, 0, 0) : nullptr,
            .b_stride = b.D + b.pad,
            .dy = dy.Row(0, 0, 0),
            .dy_stride = dy.D + dy.pad,
            .da = da.Row(0, 0, 0),
            .da_stride = da.D + da.pad,
            .db = gated ? db.Row(0, 0, 0) : nullptr,
            .db_stride = db.D + db.pad};
  }

  RowBuffer a, b, dy;
};

TEST(Gate, ForwardMatchesReference) {
  ForEachTarget([](const std::string&) {
    Rng rng(1);
    for (const Activation f : kActivations) {
      for (const int64_t width : {1, 3, 80, 128, 768, 1000}) {
        for (const double scale : {1.0, 5.0, 1e4}) {
          for (const bool gated : {false, true}) {
            const Data data(3, width, rng, scale);
            RowBuffer actual(1, 1, 3, width, 5), expected = actual;
            GateReference(data.Forward(f, expected, gated));
            Gate(data.Forward(f, actual, gated));
            ASSERT_TRUE(actual.PadsIntact());
            for (int64_t row = 0; row < 3; ++row) {
              for (int64_t i = 0; i < width; ++i) {
                const double a = data.a.Row(0, 0, row)[i];
                const double b = gated ? data.b.Row(0, 0, row)[i] : 1.0;
                ASSERT_NEAR(actual.Row(0, 0, row)[i], expected.Row(0, 0, row)[i],
                            kUlps * kEps * std::abs(a * b) + kTiny)
                    << "activation " << static_cast<int>(f) << " a " << a << " b " << b;
              }
            }
          }
        }
      }
    }
  });
}

TEST(Gate, BackwardMatchesReference) {
  ForEachTarget([](const std::string&) {
    Rng rng(2);
    for (const Activation f : kActivations) {
      for (const int64_t width : {1, 3, 80, 128, 1000}) {
        for (const double scale : {1.0, 5.0, 1e4}) {
          for (const bool gated : {false, true}) {
            const Data data(3, width, rng, scale);
            RowBuffer da(1, 1, 3, width, 5), db = da, da_expected = da, db_expected = da;
            GateBackwardReference(data.Backward(f, da_expected, db_expected, gated));
            GateBackward(data.Backward(f, da, db, gated));
            ASSERT_TRUE(da.PadsIntact() && db.PadsIntact());
            for (int64_t row = 0; row < 3; ++row) {
              for (int64_t i = 0; i < width; ++i) {
                const double a = data.a.Row(0, 0, row)[i];
                const double b = gated ? data.b.Row(0, 0, row)[i] : 1.0;
                const double dy = data.dy.Row(0, 0, row)[i];
                // The slope adds two terms below 1.2 each; the exponent's own rounding is amplified by at most 2.
                ASSERT_NEAR(da.Row(0, 0, row)[i], da_expected.Row(0, 0, row)[i],
                            2 * kUlps * kEps * std::abs(dy * b) + kTiny)
                    << "activation " << static_cast<int>(f) << " a " << a;
                if (gated) {
                  ASSERT_NEAR(db.Row(0, 0, row)[i], db_expected.Row(0, 0, row)[i],
                              kUlps * kEps * std::abs(dy * a) + kTiny);
                }
              }
            }
          }
        }
      }
    }
  });
}

TEST(Gate, InPlace) {
  ForEachTarget([](const std::string&) {
    Rng rng(3);
    for (const Activation f : kActivations) {
      Data data(2, 53, rng, 2);
      RowBuffer y(1, 1, 2, 53), da = y, db = y;
      Gate(data.Forward(f, y, true));
      GateBackward(data.Backward(f, da, db, true));
      Data copy = data;
      Gate(copy.Forward(f, copy.a, true));
      Data backward = data;
      GateBackward(backward.Backward(f, backward.a, backward.b, true));
      for (int64_t row = 0; row < 2; ++row) {
        for (int64_t i = 0; i < 53; ++i) {
          ASSERT_EQ(copy.a.Row(0, 0, row)[i], y.Row(0, 0, row)[i]);
          ASSERT_EQ(backward.a.Row(0, 0, row)[i], da.Row(0, 0, row)[i]);
          ASSERT_EQ(backward.b.Row(0, 0, row)[i], db.Row(0, 0, row)[i]);
        }
      }
    }
  });
}

// Every float magnitude, both signs: small relative error where the function is not small against a.
TEST(Gate, ExtremeInputs) {
  ForEachTarget([](const std::string&) {
    for (const Activation f : kActivations) {
      for (const float a :
           {0.0f, -0.0f, 1e-30f, -1e-30f, 87.0f, -87.0f, 89.0f, -89.0f, 1e4f, -1e4f, 1e20f, -1e20f, 3e38f, -3e38f}) {
        const float dy = 1;
        float y, da;
        Gate({.activation = f, .rows = 1, .width = 1, .a = &a, .y = &y});
        GateBackward({.activation = f, .rows = 1, .width = 1, .a = &a, .dy = &dy, .da = &da});
        if (a >= 87) {
          EXPECT_EQ(y, a);
          EXPECT_EQ(da, 1.0f);
        } else if (a <= -87) {
          EXPECT_NEAR(y, 0, 1e-35) << a;
          EXPECT_NEAR(da, 0, 1e-35) << a;
        } else {
          EXPECT_NEAR(y, a / 2, std::abs(a) * kUlps * kEps);
          EXPECT_NEAR(da, 0.5, kUlps * kEps);
        }
      }
    }
  });
}

double F(Activation f, double a) {
  switch (f) {
    case Activation::kSilu: return a / (1 + std::exp(-a));
    case Activation::kGelu: return a * (1 + std::erf(a / std::numbers::sqrt2)) / 2;
    case Activation::kGeluTanh:
      return a * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (a + 0.044715 * std::pow(a, 3)))) / 2;
  }
  return 0;
}

TEST(Gate, ReferenceMatchesFiniteDifferences) {
  for (const Activation f : kActivations) {
    for (float a = -6; a <= 6; a += 0.37f) {
      const float b = 1.5f, dy = -0.7f;
      float y, da, db;
      GateReference({.activation = f, .rows = 1, .width = 1, .a = &a, .b = &b, .y = &y});
      GateBackwardReference(
          {.activation = f, .rows = 1, .width = 1, .a = &a, .b = &b, .dy = &dy, .da = &da, .db = &db});
      constexpr double kStep = 1e-6;
      const double slope = (F(f, a + kStep) - F(f, a - kStep)) / (2 * kStep);
      EXPECT_NEAR(y, F(f, a) * b, 1e-6 * (1 + std::abs(y)));
      EXPECT_NEAR(da, dy * b * slope, 1e-6);
      EXPECT_NEAR(db, dy * F(f, a), 1e-6 * (1 + std::abs(db)));
    }
  }
}

}  // namespace
}  // namespace tensorcache
