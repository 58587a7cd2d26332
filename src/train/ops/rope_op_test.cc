#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "train/ops/gradcheck_testing.h"
#include "train/ops/op_testing.h"
#include "train/ops/rope.h"

namespace tensorcache::train {
namespace {

constexpr RopePairing kPairings[] = {RopePairing::kHalfSplit, RopePairing::kInterleaved};

RopeTable Table(int64_t rotary_dims, RopePairing pairing, int64_t first, int64_t tokens) {
  return MakeRopeTable(MakeRopeFrequencies(rotary_dims, 10000.0).value(), pairing, first, tokens, at::kCPU);
}

Op RopeOp(const RopeTable& table, bool inverse) {
  return [=](const std::vector<Tensor>& in, Backend backend) { return Rope(in[0], table, inverse, backend); };
}

struct Shape {
  int64_t B, T, heads, D, R;
};

TEST(RopeOp, FusedMatchesComposite) {
  at::manual_seed(1);
  const ThreadCount two(2);
  for (const RopePairing pairing : kPairings) {
    for (const Shape& s : {Shape{1, 1, 1, 2, 2},
                           {2, 5, 3, 6, 6},
                           {3, 70, 2, 40, 40},
                           {2, 33, 3, 37, 22},
                           {0, 5, 1, 4, 4},
                           {2, 3, 0, 4, 4}}) {
      for (const int64_t first : {int64_t{0}, int64_t{10'000'000}}) {
        for (const bool inverse : {false, true}) {
          SCOPED_TRACE(::testing::Message() << "T " << s.T << " D " << s.D << " R " << s.R << " first " << first);
          const Tensor x = at::randn({s.B, s.T, s.heads, s.D});
          ExpectFusedMatchesComposite(RopeOp(Table(s.R, pairing, first, s.T), inverse), {x}, 2);
        }
      }
    }
  }
}

// A slice of a fused projection, and rows that are not contiguous at all.
TEST(RopeOp, StridedInputs) {
  at::manual_seed(2);
  const RopeTable table = Table(16, RopePairing::kHalfSplit, 7, 9);
  const Tensor all = at::randn({2, 9, 6, 16});
  for (const Tensor& x : {all.narrow(2, 1, 3), at::randn({2, 9, 16, 6}).transpose(2, 3),
                          all.transpose(0, 2).narrow(0, 0, 1).transpose(0, 2)}) {
    const Tensor y = Rope(x, table, false, Backend::kFused);
    EXPECT_TRUE(y.is_contiguous());
    EXPECT_TRUE(at::equal(y, Rope(x.contiguous(), table, false, Backend::kFused)));
  }
}

TEST(RopeOp, InverseUndoes) {
  at::manual_seed(3);
  for (const RopePairing pairing : kPairings) {
    const RopeTable table = Table(32, pairing, 10'000'000, 50);
    const Tensor x = at::randn({2, 50, 3, 32});
    EXPECT_TRUE(Close(Rope(Rope(x, table), table, /*inverse=*/true), x, 4));
  }
}

// Scores of rotated pairs depend on the distance alone, at any position.
TEST(RopeOp, TenMillionthPosition) {
  at::manual_seed(4);
  const Tensor q = at::randn({1, 8, 1, 32}), k = at::randn({1, 8, 1, 32});
  for (const RopePairing pairing : kPairings) {
    const auto scores = [&](int64_t first) {
      const RopeTable table = Table(32, pairing, first, 8);
      return Rope(q, table).squeeze(2).matmul(Rope(k, table).squeeze(2).transpose(1, 2));
    };
    EXPECT_TRUE(Close(scores(10'000'000), scores(0), SumRoundings(32) + 4));
  }
  const RopeTable table = Table(2, RopePairing::kHalfSplit, 10'000'000, 1);
  EXPECT_FLOAT_EQ(table.cos.item<float>(), static_cast<float>(std::cos(1e7L)));
  EXPECT_FLOAT_EQ(table.sin.item<float>(), static_cast<float>(std::sin(1e7L)));
}

TEST(RopeOp, TableOfGivenPositions) {
  const RopeFrequencies frequencies = MakeRopeFrequencies(8, 10000.0).value();
  const std::vector<int64_t> positions = {3, 4, 5};
  const RopeTable a = MakeRopeTable(frequencies, RopePairing::kInterleaved, positions, at::kCPU);
  const RopeTable b = MakeRopeTable(frequencies, RopePairing::kInterleaved, 3, 3, at::kCPU);
  EXPECT_TRUE(at::equal(a.cos, b.cos) && at::equal(a.sin, b.sin));
  EXPECT_EQ(a.pairing, RopePairing::kInterleaved);
}

TEST(RopeOp, CompositeGradcheck) {
  at::manual_seed(5);
  const ThreadCount one(1);
  for (const RopePairing pairing : kPairings) {
    const RopeTable table = Table(4, pairing, 100, 3);
    const Tensor x = at::randn({2, 3, 2, 6}, at::kDouble);
    EXPECT_TRUE(Gradcheck([&](const auto& in) { return std::vector<Tensor>{Rope(in[0], table)}; }, {x}));
  }
}

TEST(RopeOp, Bfloat16) {
  at::manual_seed(6);
  ExpectBfloat16Close(RopeOp(Table(16, RopePairing::kHalfSplit, 5, 9), false), {at::randn({2, 9, 3, 16})}, 1);
}

TEST(RopeOp, RefusesWrongTables) {
  const Tensor x = at::randn({2, 9, 3, 16});
  EXPECT_THROW(Rope(x, Table(16, RopePairing::kHalfSplit, 0, 8)), c10::Error);
  EXPECT_THROW(Rope(x, Table(18, RopePairing::kHalfSplit, 0, 9)), c10::Error);
  ExpectNoSecondDerivative(RopeOp(Table(16, RopePairing::kHalfSplit, 0, 9), false), {x});
}

// Inputs x, weight and bias.
Op ProjectOp(const RopeTable& table, int64_t head_dim, int64_t rotated_heads) {
  return [=](const std::vector<Tensor>& in, Backend backend) {
    return ProjectRotary({.x = in[0],
                          .weight = in[1],
                          .bias = in[2],
                          .head_dim = head_dim,
                          .rotated_heads = rotated_heads,
                          .table = table},
                         backend);
  };
}

TEST(ProjectRotary, FusedMatchesComposite) {
  at::manual_seed(7);
  constexpr int64_t kHeads = 5;
  for (const RopePairing pairing : kPairings) {
    for (const Shape& s : {Shape{1, 1, 1, 2, 2}, {2, 19, 3, 8, 6}, {1, 130, 2, 24, 24}}) {
      for (const int64_t rotated : {int64_t{0}, int64_t{1}, int64_t{3}, kHeads}) {
        for (const bool with_bias : {false, true}) {
          SCOPED_TRACE(::testing::Message() << "T " << s.T << " D " << s.D << " rotated " << rotated);
          const int64_t E = 37;
          const std::vector<Tensor> inputs = {at::randn({s.B, s.T, E}), at::randn({kHeads * s.D, E}),
                                              with_bias ? at::randn({kHeads * s.D}) : Tensor()};
          const ThreadCount one(1);
          const Op op = ProjectOp(Table(s.R, pairing, 3, s.T), s.D, rotated);
          ExpectFusedMatchesComposite(op, inputs, std::max({s.B * s.T, E, kHeads * s.D}));
          ExpectEachGradientAlone(op, inputs);
        }
      }
    }
  }
}

TEST(ProjectRotary, StridedInputsAndGradients) {
  at::manual_seed(8);
  const RopeTable table = Table(8, RopePairing::kHalfSplit, 0, 6);
  const Tensor x = at::randn({6, 2, 10}).transpose(0, 1), weight = at::randn({10, 24}).t();
  const Op op = [&](const std::vector<Tensor>& in, Backend backend) {
    return ProjectOp(table, 8, 2)({in[0], in[1], Tensor()}, backend).transpose(0, 3);  // the gradient comes transposed
  };
  ExpectFusedMatchesComposite(op, {x, weight}, 24);
}

// Two blocks of rows meet in the middle of the second sequence.
TEST(ProjectRotary, TwoBlocks) {
  at::manual_seed(11);
  const ThreadCount two(2);
  const Op op = ProjectOp(Table(4, RopePairing::kHalfSplit, 0, 501), 4, 2);
  ExpectFusedMatchesComposite(op, {at::randn({3, 501, 10}), at::randn({12, 10}), at::randn({12})}, 3 * 501);
  ExpectFusedMatchesComposite(ProjectOp(RopeTable(), 4, 0), {at::randn({3, 501, 10}), at::randn({12, 10}), Tensor()},
                              3 * 501);
}

TEST(ProjectRotary, WithoutTable) {
  const std::vector<Tensor> inputs = {at::randn({2, 3, 4}), at::randn({6, 4}), Tensor()};
  ExpectFusedMatchesComposite(ProjectOp(RopeTable(), 2, 0), inputs, 12);
}

TEST(ProjectRotary, CompositeGradcheck) {
  at::manual_seed(9);
  const ThreadCount one(1);
  const RopeTable table = Table(4, RopePairing::kInterleaved, 5, 3);
  const auto f = [&](const std::vector<Tensor>& in) {
    return std::vector<Tensor>{ProjectOp(table, 4, 2)(in, Backend::kAuto)};
  };
  EXPECT_TRUE(
      Gradcheck(f, {at::randn({2, 3, 5}, at::kDouble), at::randn({12, 5}, at::kDouble), at::randn({12}, at::kDouble)}));
}

TEST(ProjectRotary, Bfloat16) {
  at::manual_seed(10);
  ExpectBfloat16Close(ProjectOp(Table(8, RopePairing::kHalfSplit, 0, 9), 8, 2),
                      {at::randn({2, 9, 20}), at::randn({24, 20}), at::randn({24})}, 2);
}

// Those parts whose bits are set, side by side.
Op SplitOp(const RopeTable& table, int64_t query_heads, int parts) {
  return [=](const std::vector<Tensor>& in, Backend backend) {
    const SplitHeads split = SplitAndRotate(in[0], query_heads, table, backend);
    const Tensor all[] = {split.q, split.k, split.v, split.plain_q, split.plain_k, split.plain_v};
    std::vector<Tensor> chosen;
    for (int i = 0; i < 6; ++i) {
      if (parts >> i & 1)
        chosen.push_back(all[i] * (1.5 + i));  // parts of the same rows must not be taken for each other
    }
    return at::cat(chosen, 2);
  };
}

TEST(SplitAndRotate, FusedMatchesComposite) {
  at::manual_seed(12);
  const ThreadCount two(2);
  for (const RopePairing pairing : kPairings) {
    for (const Shape& s : {Shape{1, 1, 3, 2, 2}, {2, 70, 6, 8, 6}, {3, 33, 8, 5, 4}, {0, 5, 3, 4, 4}}) {
      for (const int parts : {63, 1, 2, 4, 8, 16, 32, 1 | 8, 2 | 16, 4 | 32, 3 | 32}) {
        SCOPED_TRACE(::testing::Message() << "T " << s.T << " D " << s.D << " heads " << s.heads << " parts " << parts);
        const int64_t query_heads = s.heads % 4 == 0 ? s.heads / 2 : s.heads / 3;
        ExpectFusedMatchesComposite(SplitOp(Table(s.R, pairing, 3, s.T), query_heads, parts),
                                    {at::randn({s.B, s.T, s.heads, s.D})}, 4);
      }
    }
  }
}

TEST(SplitAndRotate, StridedInputsAndGradients) {
  at::manual_seed(13);
  const RopeTable table = Table(8, RopePairing::kHalfSplit, 0, 6);
  const Op op = [&](const std::vector<Tensor>& in, Backend backend) {
    return SplitOp(table, 2, 63)(in, backend).transpose(0, 3);  // the gradient comes transposed
  };
  ExpectFusedMatchesComposite(op, {at::randn({6, 2, 4, 8}).transpose(0, 1)}, 4);
  ExpectFusedMatchesComposite(op, {at::randn({2, 6, 8, 4}).transpose(2, 3)}, 4);
}

TEST(SplitAndRotate, CompositeGradcheck) {
  at::manual_seed(14);
  const ThreadCount one(1);
  const RopeTable table = Table(4, RopePairing::kInterleaved, 5, 3);
  const auto f = [&](const std::vector<Tensor>& in) {
    return std::vector<Tensor>{SplitOp(table, 2, 63)(in, Backend::kAuto)};
  };
  EXPECT_TRUE(Gradcheck(f, {at::randn({2, 3, 4, 6}, at::kDouble)}));
}

TEST(SplitAndRotate, RefusesWhatItCannotSplit) {
  const RopeTable table = Table(8, RopePairing::kHalfSplit, 0, 9);
  const Tensor x = at::randn({2, 9, 6, 8});
  EXPECT_THROW(SplitAndRotate(x, 3, table), c10::Error);
  EXPECT_THROW(SplitAndRotate(x, 6, table), c10::Error);
  EXPECT_THROW(SplitAndRotate(x, 2, Table(8, RopePairing::kHalfSplit, 0, 8)), c10::Error);
  ExpectNoSecondDerivative(SplitOp(table, 2, 63), {x});
}

TEST(ProjectRotary, RefusesWrongSizes) {
  const RopeTable table = Table(8, RopePairing::kHalfSplit, 0, 9);
  const std::vector<Tensor> inputs = {at::randn({2, 9, 20}), at::randn({24, 20}), Tensor()};
  EXPECT_THROW(ProjectOp(table, 7, 2)(inputs, Backend::kAuto), c10::Error);
  EXPECT_THROW(ProjectOp(table, 8, 4)(inputs, Backend::kAuto), c10::Error);
  EXPECT_THROW(ProjectOp(table, 4, 2)(inputs, Backend::kAuto), c10::Error);
  ExpectNoSecondDerivative(ProjectOp(table, 8, 2), inputs);
}

}  // namespace
}  // namespace tensorcache::train
