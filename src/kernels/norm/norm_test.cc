#include "tensorcache/kernels/norm.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "core/rng.h"
#include "kernels/norm/norm_ref.h"
#include "testing/kernel_testing.h"

namespace tensorcache {
namespace {

using testing::ForEachTarget;
using testing::GuardedBuffer;
using testing::RowBuffer;
using testing::WithinNorm;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr int64_t kWidths[] = {1, 3, 16, 31, 80, 128, 768, 1000};

// Rounding errors of a sum over the row grow like the square root of the terms that one accumulator takes in turn; the
// constant covers the few operations on each element.
double Ulps(int64_t width) { return 6 + std::sqrt(static_cast<double>(width)) / 4; }

// A norm's two kinds behind one interface.
struct Kind {
  const char* name;
  void (*forward)(const NormArgs&);
  void (*forward_reference)(const NormArgs&);
  void (*backward)(const NormBackwardArgs&);
  void (*backward_reference)(const NormBackwardArgs&);
  bool centred;
};

const Kind kKinds[] = {
    {"LayerNorm", LayerNorm, LayerNormReference, LayerNormBackward, LayerNormBackwardReference, true},
    {"RMSNorm", RmsNorm, RmsNormReference, RmsNormBackward, RmsNormBackwardReference, false}};

struct Data {
  Data(int64_t rows, int64_t width, Rng& rng, double scale = 1, double offset = 0)
      : x(1, 1, rows, width, 3), dy(1, 1, rows, width, 1), weight(width), bias(width) {
    x.FillNormal(rng, scale);
    dy.FillNormal(rng);
    weight.FillNormal(rng);
    bias.FillNormal(rng);
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t i = 0; i < width; ++i) x.Row(0, 0, row)[i] += static_cast<float>(offset);
    }
  }
  NormArgs Forward(RowBuffer& y, bool with_bias) const {
    return {.rows = x.T,
            .width = x.D,
            .x = x.Row(0, 0, 0),
            .x_stride = x.D + x.pad,
            .weight = weight.data(),
            .bias = with_bias ? bias.data() : nullptr,
            .eps = 1e-5f,
            .y = y.Row(0, 0, 0),
            .y_stride = y.D + y.pad};
  }
  NormBackwardArgs Backward(RowBuffer& dx, float* dweight, float* dbias) const {
    return {.rows = x.T,
            .width = x.D,
            .x = x.Row(0, 0, 0),
            .x_stride = x.D + x.pad,
            .weight = weight.data(),
            .eps = 1e-5f,
            .dy = dy.Row(0, 0, 0),
            .dy_stride = dy.D + dy.pad,
            .dx = dx.Row(0, 0, 0),
            .dx_stride = dx.D + dx.pad,
            .dweight = dweight,
            .dbias = dbias};
  }

  RowBuffer x, dy;
  GuardedBuffer weight, bias;
};

TEST(Norm, ForwardMatchesReference) {
  ForEachTarget([](const std::string&) {
    Rng rng(1);
    for (const Kind& kind : kKinds) {
      for (const int64_t width : kWidths) {
        using Pair = std::pair<double, double>;
        for (const auto& [scale, offset] : {Pair{1, 0}, Pair{1e4, 0}, Pair{1e-4, 0}, Pair{1, 1e4}, Pair{1, -1e4}}) {
          for (const bool with_bias : {false, true}) {
            if (with_bias && !kind.centred) continue;
            SCOPED_TRACE(::testing::Message()
                         << kind.name << " " << width << " scale " << scale << " offset " << offset);
            const Data data(5, width, rng, scale, offset);
            RowBuffer actual(1, 1, 5, width, 2), expected = actual;
            kind.forward_reference(data.Forward(expected, with_bias));
            kind.forward(data.Forward(actual, with_bias));
            ASSERT_TRUE(actual.PadsIntact());
            for (int64_t row = 0; row < 5; ++row) {
              const double magnitude = testing::MaxAbs(expected.Row(0, 0, row), width) +
                                       (with_bias ? testing::MaxAbs(data.bias.data(), width) : 0);
              ASSERT_TRUE(WithinNorm(actual.Row(0, 0, row), expected.Row(0, 0, row), width, magnitude, Ulps(width)));
            }
          }
        }
      }
    }
  });
}

TEST(Norm, InPlaceAndConstantRows) {
  ForEachTarget([](const std::string&) {
    Rng rng(2);
    for (const Kind& kind : kKinds) {
      Data data(2, 37, rng);
      std::fill_n(data.x.Row(0, 0, 1), 37, 1e4f);
      RowBuffer expected = data.x;
      kind.forward(data.Forward(expected, false));
      kind.forward(data.Forward(data.x, false));
      for (int64_t row = 0; row < 2; ++row) {
        for (int64_t i = 0; i < 37; ++i) ASSERT_EQ(data.x.Row(0, 0, row)[i], expected.Row(0, 0, row)[i]);
      }
      for (int64_t i = 0; i < 37; ++i) {
        const float want = kind.centred ? 0.0f : data.weight[i];
        ASSERT_NEAR(expected.Row(0, 0, 1)[i], want, 1e-6 * std::abs(data.weight[i]));
      }
    }
  });
}

TEST(Norm, BackwardMatchesReference) {
  ForEachTarget([](const std::string&) {
    Rng rng(3);
    constexpr int64_t kRows = 6;
    for (const Kind& kind : kKinds) {
      for (const int64_t width : kWidths) {
        for (const double scale : {1.0, 1e3}) {
          SCOPED_TRACE(::testing::Message() << kind.name << " " << width << " scale " << scale);
          const Data data(kRows, width, rng, scale);
          RowBuffer actual(1, 1, kRows, width, 2), expected = actual;
          GuardedBuffer dweight(width), dbias(width), dweight_expected(width), dbias_expected(width);
          dweight.FillNormal(rng);  // gradients are added to what is there
          dbias.FillNormal(rng);
          std::copy_n(dweight.data(), width, dweight_expected.data());
          std::copy_n(dbias.data(), width, dbias_expected.data());
          kind.backward(data.Backward(actual, dweight.data(), kind.centred ? dbias.data() : nullptr));
          kind.backward_reference(
              data.Backward(expected, dweight_expected.data(), kind.centred ? dbias_expected.data() : nullptr));
          ASSERT_TRUE(actual.PadsIntact() && dweight.Intact() && dbias.Intact());
          // dx is r times differences of g = dy weight; h is at most sqrt(width), that of a single spike.
          for (int64_t row = 0; row < kRows; ++row) {
            const float* x = data.x.Row(0, 0, row);
            double mean = 0, square = 0, g = 0, h = 0;
            for (int64_t i = 0; i < width; ++i) mean += (kind.centred ? x[i] : 0.0) / static_cast<double>(width);
            for (int64_t i = 0; i < width; ++i) square += (x[i] - mean) * (x[i] - mean) / static_cast<double>(width);
            const double r = 1 / std::sqrt(square + 1e-5);
            for (int64_t i = 0; i < width; ++i) {
              g = std::max(g, std::abs(static_cast<double>(data.dy.Row(0, 0, row)[i]) * data.weight[i]));
              h = std::max(h, std::abs(x[i] - mean) * r);
            }
            ASSERT_TRUE(
                WithinNorm(actual.Row(0, 0, row), expected.Row(0, 0, row), width, r * g * (1 + h), Ulps(width)));
          }
          const double magnitude = 4 + 4 * 4 * kRows;  // the start, and dy h of each row with both below 4 or so
          ASSERT_TRUE(WithinNorm(dweight.data(), dweight_expected.data(), width, magnitude, Ulps(width)));
          if (kind.centred) {
            ASSERT_TRUE(WithinNorm(dbias.data(), dbias_expected.data(), width, magnitude, Ulps(width)));
          }
          // dx over dy, and without parameter gradients.
          Data copy = data;
          NormBackwardArgs in_place = copy.Backward(copy.dy, nullptr, nullptr);
          kind.backward(in_place);
          for (int64_t row = 0; row < kRows; ++row) {
            for (int64_t i = 0; i < width; ++i) ASSERT_EQ(copy.dy.Row(0, 0, row)[i], actual.Row(0, 0, row)[i]);
          }
        }
      }
    }
  });
}

// sum_i dy_i y_i of one row, all in double.
double Loss(bool centred, const std::vector<double>& x, const std::vector<double>& weight,
            const std::vector<double>& bias, const float* dy) {
  const double n = static_cast<double>(x.size());
  double mean = 0, square = 0, loss = 0;
  for (const double v : x) mean += centred ? v / n : 0;
  for (const double v : x) square += (v - mean) * (v - mean) / n;
  for (size_t i = 0; i < x.size(); ++i) {
    loss += dy[i] * ((x[i] - mean) / std::sqrt(square + static_cast<double>(1e-5f)) * weight[i] + bias[i]);
  }
  return loss;
}

TEST(Norm, ReferenceBackwardMatchesFiniteDifferences) {
  Rng rng(4);
  for (const Kind& kind : kKinds) {
    for (const int64_t width : {1, 2, 7, 16}) {
      const Data data(1, width, rng);
      RowBuffer dx(1, 1, 1, width);
      GuardedBuffer dweight(width), dbias(width);
      dweight.Fill(0);
      dbias.Fill(0);
      kind.backward_reference(data.Backward(dx, dweight.data(), kind.centred ? dbias.data() : nullptr));
      const float* row = data.x.Row(0, 0, 0);
      std::vector<double> x(row, row + width), weight(data.weight.data(), data.weight.data() + width);
      std::vector<double> bias(static_cast<size_t>(width), 0.0);
      const auto slope = [&](double& parameter) {
        constexpr double kStep = 1e-6;
        const double value = parameter;
        parameter = value + kStep;
        const double up = Loss(kind.centred, x, weight, bias, data.dy.Row(0, 0, 0));
        parameter = value - kStep;
        const double down = Loss(kind.centred, x, weight, bias, data.dy.Row(0, 0, 0));
        parameter = value;
        return (up - down) / (2 * kStep);
      };
      for (int64_t i = 0; i < width; ++i) {
        const auto at = static_cast<size_t>(i);
        // The gradients are rounded to float; differences of doubles with this step are exact to about 1e-8.
        ASSERT_NEAR(dx.Row(0, 0, 0)[i], slope(x[at]), 1e-6 * (1 + std::abs(dx.Row(0, 0, 0)[i])));
        ASSERT_NEAR(dweight[i], slope(weight[at]), 1e-6 * (1 + std::abs(dweight[i])));
        if (kind.centred) {
          ASSERT_NEAR(dbias[i], slope(bias[at]), 1e-6 * (1 + std::abs(dbias[i])));
        }
      }
    }
  }
}

}  // namespace
}  // namespace tensorcache
