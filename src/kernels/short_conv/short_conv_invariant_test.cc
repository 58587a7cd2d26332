// Any split of a sequence into blocks gives what one block gives: outputs bit by bit, gradients within their rounding.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "core/rng.h"
#include "kernels/short_conv/short_conv_testing.h"

namespace tensorcache {
namespace {

using testing::ForEachTarget;
using namespace short_conv_testing;  // NOLINT(google-build-using-namespace)

// Cuts a sequence into blocks of random lengths, runs each with the rows before it as its past, and puts outputs and
// gradients together again: what a block's past gets belongs to the rows before it.
class Split {
 public:
  Split(const Problem& whole, Rng& rng) : whole_(whole), n_(whole.n), y(n_.B, n_.H, n_.T, n_.D), gradients(n_) {
    for (Wide* x : {&gradients.x, &gradients.weight, &gradients.past}) x->ForEach([](double& v) { v = 0; });
    for (int64_t t = 0; t < n_.T;) {
      const int64_t length = std::min(n_.T - t, static_cast<int64_t>(rng.Below(rng.Below(2) == 0 ? 4 : 40)));
      RunBlock(t, length);
      t += length;
    }
  }

 private:
  // A row of x, of the past or of zeros before the block.
  std::vector<float> RowAt(int64_t b, int64_t h, int64_t t) const {
    if (t < 0 && !whole_.with_past) return std::vector<float>(static_cast<size_t>(n_.D));
    const float* row = t >= 0 ? whole_.x.Row(b, h, t) : whole_.past.Row(b, h, t + Kept(n_));
    return {row, row + n_.D};
  }

  void RunBlock(int64_t first, int64_t length) {
    ShortConvShape shape = n_;
    shape.T = length;
    Problem block(shape);
    block.with_past = first > 0 || whole_.with_past;
    block.weight = whole_.weight;
    const auto for_each_row = [&](int64_t begin, int64_t end, const auto& f) {
      for (int64_t b = 0; b < n_.B; ++b) {
        for (int64_t h = 0; h < n_.H; ++h) {
          for (int64_t i = begin; i < end; ++i) f(b, h, i);
        }
      }
    };
    for_each_row(-Kept(n_), length, [&](int64_t b, int64_t h, int64_t i) {
      const std::vector<float> row = RowAt(b, h, first + i);
      std::copy(row.begin(), row.end(), i < 0 ? block.past.Row(b, h, i + Kept(n_)) : block.x.Row(b, h, i));
      if (i >= 0) std::copy_n(whole_.d_y.Row(b, h, first + i), n_.D, block.d_y.Row(b, h, i));
    });
    RowBuffer block_y(n_.B, n_.H, length, n_.D);
    RunForward(block.Forward(block_y.rows()));
    GradientsOf<float> block_gradients(shape);
    RunBackward(block.Backward(block_gradients));

    const auto add = [&](const float* from, double* to) {
      for (int64_t d = 0; d < n_.D; ++d) to[d] += from[d];
    };
    for_each_row(-Kept(n_), length, [&](int64_t b, int64_t h, int64_t i) {
      const int64_t t = first + i;
      add(i < 0 ? block_gradients.past.Row(b, h, i + Kept(n_)) : block_gradients.x.Row(b, h, i),
          t < 0 ? gradients.past.Row(b, h, t + Kept(n_)) : gradients.x.Row(b, h, t));
      if (i >= 0) std::copy_n(block_y.Row(b, h, i), n_.D, y.Row(b, h, t));
    });
    for_each_row(0, n_.taps, [&](int64_t b, int64_t h, int64_t j) {
      add(block_gradients.weight.Row(b, h, j), gradients.weight.Row(b, h, j));
    });
  }

  const Problem& whole_;
  const ShortConvShape n_;

 public:
  RowBuffer y;
  GradientsOf<double> gradients;
};

TEST(ShortConv, AnySplitGivesTheSame) {
  Rng rng(6);
  for (const int64_t taps : {0, 1, 2, 4, 16}) {
    for (const bool unit : {false, true}) {
      for (const bool with_past : {false, true}) {
        const ShortConvShape n{.B = 1, .H = 2, .T = 75, .D = 27, .taps = taps, .unit = unit};
        SCOPED_TRACE(Describe(n));
        const Problem whole = RandomProblem(n, with_past, rng);
        const ProblemOf<double> wide = Widened(whole);
        const GradientsOf<double> expected = Gradients(wide);
        const Bounds bounds(wide);
        ForEachTarget([&](const std::string&) {
          RowBuffer y(n.B, n.H, n.T, n.D);
          RunForward(whole.Forward(y.rows()));
          for (int i = 0; i < 3; ++i) {
            const Split split(whole, rng);
            EXPECT_EQ(split.y.Values(), y.Values());
            // The parts of a gradient are sums of parts of its terms: the bounds of the whole hold for what they add
            // up to.
            ExpectWithin(split.gradients.x, expected.x, bounds.gradients.x, "d_x");
            ExpectWithin(split.gradients.weight, expected.weight, bounds.gradients.weight, "d_weight");
            ExpectWithin(split.gradients.past, expected.past, bounds.gradients.past, "d_past");
          }
        });
      }
    }
  }
}

}  // namespace
}  // namespace tensorcache
