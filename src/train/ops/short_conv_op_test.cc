// Fused and composite short convolution against each other and against the kernel's reference, with all gradients.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "kernels/short_conv/short_conv_ref.h"
#include "train/ops/fields_testing.h"
#include "train/ops/gradcheck_testing.h"
#include "train/ops/items.h"
#include "train/ops/op_testing.h"
#include "train/ops/short_conv.h"

namespace tensorcache::train {
namespace {

using Field = InputField<ShortConvInputs>;
constexpr InputFields<ShortConvInputs, 3> kFields = {
    Field{"x", &ShortConvInputs::x}, Field{"weight", &ShortConvInputs::weight}, Field{"past", &ShortConvInputs::past}};
enum { kX, kWeight, kPast };

struct Case {
  ShortConvShape shape;
  bool past = true;
};

std::string Describe(const Case& c) {
  const ShortConvShape& n = c.shape;
  return (::testing::Message() << "B=" << n.B << " T=" << n.T << " H=" << n.H << " D=" << n.D << " taps=" << n.taps
                               << " unit=" << n.unit << " past=" << c.past)
      .GetString();
}

ShortConvInputs RandomInputs(const Case& c) {
  const ShortConvShape& n = c.shape;
  ShortConvInputs in{.x = Normal({n.B, n.T, n.H, n.D}), .unit = n.unit};
  if (n.taps > 0) in.weight = Normal({n.H, n.taps, n.D});
  if (n.taps > 0 && c.past) in.past = Normal({n.B, n.H, n.taps - 1, n.D});
  return in;
}

struct ConvRun {
  Tensor y;
  std::array<Tensor, 3> gradients;
};

ConvRun RunConv(const ShortConvInputs& in, Backend backend, const Tensor& d_y) {
  const Tensor y = ShortConv(in, backend);
  return {.y = y.detach(), .gradients = GradientsOf(kFields, in, {y}, {d_y})};
}

// The largest sums of absolute values, in units of eps their number of roundings.
struct Magnitudes {
  double y = 0;
  std::array<double, 3> gradients{};
};

Magnitudes MagnitudesOf(const Case& c, const ShortConvInputs& in, const Tensor& d_y) {
  const ShortConvShape& n = c.shape;
  // Sums of absolute values, without the scaling.
  ShortConvInputs size{.x = in.x.abs()};
  if (in.weight.defined()) size.weight = in.weight.abs();
  if (in.past.defined()) size.past = in.past.abs();
  ShortConvInputs plain = in;
  plain.unit = false;
  const Tensor z = ShortConv(plain, Backend::kComposite), z_size = ShortConv(size, Backend::kComposite);
  const Tensor r = (z.square().sum(-1, true) + 1e-12).rsqrt();
  const double taps = static_cast<double>(n.taps + 1), row = SumRoundings(n.D);
  Tensor y_error = taps * z_size, d_z = d_y.abs(), d_z_error = at::zeros_like(d_y);
  if (n.unit) {
    // y errs by what z does, relative to the row's length, and by the rounding of that length.
    const Tensor y = z * r, relative = taps * z_size.norm(2, -1, true) * r + row, dot = (y * d_y).sum(-1, true);
    y_error = r * y_error + y.abs() * relative;
    const Tensor dot_error = (y_error * d_y.abs()).sum(-1, true) + (relative + row) * (y * d_y).abs().sum(-1, true);
    d_z = (r * (d_y - y * dot)).abs();
    d_z_error = r * (y_error * dot.abs() + y.abs() * dot_error + d_y.abs() + 2 * (y * dot).abs()) + d_z * relative;
  }
  const auto gradients = [&](const Tensor& d) {
    const ConvRun run = RunConv(LeavesOf(kFields, size, at::kDouble), Backend::kComposite, d);
    std::array<double, 3> largest;
    for (size_t i = 0; i < 3; ++i) largest[i] = MaxAbs(run.gradients[i]);
    return largest;
  };
  const std::array<double, 3> passed_on = gradients(d_z_error), summed = gradients(d_z);
  const std::array<double, 3> roundings = {taps, SumRoundings(n.B * n.T), taps};
  Magnitudes m{.y = MaxAbs(y_error)};
  for (size_t i = 0; i < 3; ++i) m.gradients[i] = passed_on[i] + roundings[i] * summed[i];
  return m;
}

void ExpectSame(const ConvRun& actual, const ConvRun& expected, const Magnitudes& m, double eps,
                std::set<std::string>* seen) {
  ExpectWithin("y", actual.y, expected.y, eps * m.y, seen);
  ExpectGradientsWithin(kFields, actual.gradients, expected.gradients, m.gradients, eps, seen);
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const bool unit : {false, true}) {
    for (const bool past : {false, true}) {
      cases.push_back({{.B = 1, .H = 1, .T = 1, .D = 1, .taps = 1, .unit = unit}, past});
      cases.push_back({{.B = 2, .H = 3, .T = 7, .D = 5, .taps = 0, .unit = unit}, past});
      cases.push_back({{.B = 2, .H = 3, .T = 1, .D = 8, .taps = 4, .unit = unit}, past});
      cases.push_back({{.B = 1, .H = 2, .T = 3, .D = 33, .taps = 7, .unit = unit}, past});
      cases.push_back({{.B = 3, .H = 2, .T = 50, .D = 17, .taps = 3, .unit = unit}, past});
      cases.push_back({{.B = 2, .H = 1, .T = 70, .D = 64, .taps = 16, .unit = unit}, past});
      cases.push_back({{.B = 2, .H = 2, .T = 0, .D = 4, .taps = 3, .unit = unit}, past});
      cases.push_back({{.B = 0, .H = 2, .T = 3, .D = 4, .taps = 3, .unit = unit}, past});
    }
  }
  return cases;
}

Tensor OutputGradient(const Case& c) { return Normal({c.shape.B, c.shape.T, c.shape.H, c.shape.D}); }

class ShortConvOp : public ::testing::Test {
 protected:
  void SetUp() override { at::manual_seed(40); }
};

TEST_F(ShortConvOp, FusedAndCompositeAgreeWithAllGradients) {
  const ThreadCount two(2);
  std::set<std::string> seen;
  for (const Case& c : Cases()) {
    SCOPED_TRACE(Describe(c));
    const ShortConvInputs in = RandomInputs(c);
    const Tensor d_y = OutputGradient(c);
    const ConvRun expected = RunConv(LeavesOf(kFields, in, at::kDouble), Backend::kComposite, d_y);
    const Magnitudes m = MagnitudesOf(c, in, d_y);
    const double eps = std::numeric_limits<float>::epsilon();
    {
      SCOPED_TRACE("fused");
      const PoisonEmpty poison;
      const ShortConvInputs leaves = LeavesOf(kFields, in, at::kFloat);
      const ConvRun fused = RunConv(leaves, Backend::kFused, d_y);
      EXPECT_TRUE(fused.y.is_contiguous());
      ExpectSame(fused, expected, m, eps, &seen);
      const at::NoGradGuard no_grad;
      EXPECT_TRUE(at::equal(ShortConv(leaves, Backend::kFused), fused.y));
    }
    SCOPED_TRACE("composite");
    ExpectSame(RunConv(LeavesOf(kFields, in, at::kFloat), Backend::kComposite, d_y), expected, m, eps, nullptr);
  }
  ExpectAllSeen(kFields, seen);
}

// The kernel's reference in double, on tensors.
ConvRun RunReference(const Case& c, const ShortConvInputs& in, const Tensor& d_y) {
  const ShortConvShape& n = c.shape;
  ConvRun run{.y = at::empty_like(in.x)};
  const ShortConvForwardArgs<double> forward{.shape = n,
                                             .x = RowsOf<const double>(in.x, kTokenMajor),
                                             .weight = n.taps > 0 ? in.weight.const_data_ptr<double>() : nullptr,
                                             .past = RowsOf<const double>(in.past, kHeadMajor),
                                             .y = RowsOf<double>(run.y, kTokenMajor)};
  ShortConvForwardReference(forward, 0, n.B * n.H);
  run.gradients[kX] = at::empty_like(in.x);
  if (in.past.defined()) run.gradients[kPast] = at::empty_like(in.past);
  const Tensor d_weight = at::empty({n.B, n.H, n.taps, n.D}, in.x.options());
  ShortConvBackwardReference<double>({.shape = n,
                                      .x = forward.x,
                                      .weight = forward.weight,
                                      .past = forward.past,
                                      .d_y = RowsOf<const double>(d_y, kTokenMajor),
                                      .d_x = RowsOf<double>(run.gradients[kX], kTokenMajor),
                                      .d_weight = RowsOf<double>(d_weight, kHeadMajor),
                                      .d_past = RowsOf<double>(run.gradients[kPast], kHeadMajor)},
                                     0, n.B * n.H);
  if (in.weight.defined()) run.gradients[kWeight] = d_weight.sum(0);
  return run;
}

TEST_F(ShortConvOp, CompositeIsTheReferenceInDouble) {
  const ThreadCount one(1);
  for (const Case& c : Cases()) {
    SCOPED_TRACE(Describe(c));
    const ShortConvInputs in = RandomInputs(c);
    const Tensor d_y = OutputGradient(c);
    ExpectSame(RunConv(LeavesOf(kFields, in, at::kDouble), Backend::kAuto, d_y), RunReference(c, in, d_y),
               MagnitudesOf(c, in, d_y), std::numeric_limits<double>::epsilon(), nullptr);
  }
}

TEST_F(ShortConvOp, CompositeGradientsAreFiniteDifferences) {
  const ThreadCount one(1);
  for (const bool unit : {false, true}) {
    for (const Case& c : {Case{{.B = 2, .H = 2, .T = 4, .D = 3, .taps = 3, .unit = unit}},
                          Case{{.B = 1, .H = 2, .T = 2, .D = 4, .taps = 4, .unit = unit}},
                          Case{{.B = 1, .H = 2, .T = 3, .D = 3, .taps = 2, .unit = unit}, false},
                          Case{{.B = 2, .H = 1, .T = 3, .D = 4, .taps = 0, .unit = unit}}}) {
      SCOPED_TRACE(Describe(c));
      const ShortConvInputs in = RandomInputs(c);
      const auto f = [&](const std::vector<Tensor>& x) {
        return std::vector{ShortConv({.x = x[0], .weight = x[1], .past = x[2], .unit = unit})};
      };
      EXPECT_TRUE(Gradcheck(f, {in.x, in.weight, in.past}));
    }
  }
}

Op ConvOp(bool unit) {
  return [=](const std::vector<Tensor>& in, Backend backend) {
    return ShortConv({.x = in[0], .weight = in[1], .past = in[2], .unit = unit}, backend);
  };
}

TEST_F(ShortConvOp, GradientsAlone) {
  const ThreadCount one(1);
  for (const bool unit : {false, true}) {
    const Tensor x = at::randn({2, 9, 3, 11}), weight = at::randn({3, 4, 11}), past = at::randn({2, 3, 3, 11});
    ExpectEachGradientAlone(ConvOp(unit), {x, weight, past});
    ExpectEachGradientAlone(ConvOp(unit), {x, weight, Tensor()});
    ExpectEachGradientAlone(ConvOp(unit), {x, Tensor(), Tensor()});
  }
}

// A slice of a fused projection, inputs whose rows are not contiguous, and gradients that come transposed.
TEST_F(ShortConvOp, StridedInputsGiveTheSame) {
  const ThreadCount two(2);
  const Tensor x = at::randn({2, 9, 3, 8}), weight = at::randn({3, 4, 8}), past = at::randn({2, 3, 3, 8});
  const Tensor projection = at::randn({8, 9, 3, 2}).transpose(0, 3);
  const OpRun expected = RunOp(ConvOp(true), {x, weight, past}, projection, Backend::kFused, at::kFloat);
  const auto turned = [](const Tensor& t) { return t.transpose(0, -1).contiguous().transpose(0, -1); };
  const auto sliced = [](const Tensor& t) { return at::cat({t, t, t}, 2).narrow(2, t.size(2), t.size(2)); };
  for (const std::vector<Tensor>& inputs :
       {std::vector{turned(x), turned(weight), turned(past)}, std::vector{sliced(x), weight, sliced(past)}}) {
    const OpRun actual = RunOp(ConvOp(true), inputs, projection, Backend::kFused, at::kFloat);
    EXPECT_TRUE(actual.output.is_contiguous());
    EXPECT_TRUE(at::equal(actual.output, expected.output));
    for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(at::equal(actual.gradients[i], expected.gradients[i])) << i;
  }
}

TEST_F(ShortConvOp, SameBitsWithAnyNumberOfThreads) {
  const std::vector<Tensor> inputs = {at::randn({3, 90, 5, 16}), at::randn({5, 4, 16}), at::randn({3, 5, 3, 16})};
  const Tensor projection = at::randn_like(inputs[0]);
  const auto run = [&](int threads) {
    const ThreadCount count(threads);
    return RunOp(ConvOp(true), inputs, projection, Backend::kFused, at::kFloat);
  };
  const OpRun expected = run(1), actual = run(2);
  EXPECT_TRUE(at::equal(actual.output, expected.output));
  for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(at::equal(actual.gradients[i], expected.gradients[i])) << i;
}

// A block, and then one with the last rows of it as its past, with the gradients that go through them.
TEST_F(ShortConvOp, TwoBlocksAreOne) {
  const ThreadCount one(1);
  constexpr int64_t kTaps = 4, kCut = 5;
  const Op cut = [](const std::vector<Tensor>& in, Backend backend) {
    const Tensor first = in[0].narrow(1, 0, kCut), second = in[0].narrow(1, kCut, in[0].size(1) - kCut);
    const Tensor kept = first.narrow(1, kCut - kTaps + 1, kTaps - 1).transpose(1, 2);
    return at::cat({ShortConv({.x = first, .weight = in[1], .past = in[2], .unit = true}, backend),
                    ShortConv({.x = second, .weight = in[1], .past = kept, .unit = true}, backend)},
                   1);
  };
  const std::vector<Tensor> inputs = {at::randn({2, 12, 3, 10}), at::randn({3, kTaps, 10}), at::randn({2, 3, 3, 10})};
  const Tensor projection = at::randn_like(inputs[0]);
  const OpRun expected = RunOp(ConvOp(true), inputs, projection, Backend::kFused, at::kFloat);
  const OpRun actual = RunOp(cut, inputs, projection, Backend::kFused, at::kFloat);
  EXPECT_TRUE(at::equal(actual.output, expected.output));
  const std::array<int64_t, 3> terms = {kTaps + 1, 2 * 12, kTaps};
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(Close(actual.gradients[i], expected.gradients[i], SumRoundings(terms[i]))) << i;
  }
}

// Computed in float32: one rounding of the output, and a few of the gradients on their way.
TEST_F(ShortConvOp, Bfloat16) {
  const ThreadCount one(1);
  for (const bool unit : {false, true}) {
    const Tensor x = at::randn({2, 9, 3, 16}), weight = at::randn({3, 4, 16}), past = at::randn({2, 3, 3, 16});
    ExpectBfloat16Close(ConvOp(unit), {x, weight, past}, 2);
    ExpectBfloat16Close(ConvOp(unit), {x, weight, Tensor()}, 2);
    ExpectBfloat16Close(ConvOp(unit), {x, Tensor(), Tensor()}, 2);
    EXPECT_EQ(ConvOp(unit)({x.to(at::kBFloat16), weight, past}, Backend::kAuto).scalar_type(), at::kBFloat16);
  }
}

TEST_F(ShortConvOp, RefusesWrongSizes) {
  const Tensor x = at::randn({2, 9, 3, 8}), weight = at::randn({3, 4, 8}), past = at::randn({2, 3, 3, 8});
  for (const Backend backend : {Backend::kAuto, Backend::kComposite}) {
    EXPECT_THROW(ConvOp(false)({x[0], weight, past}, backend), c10::Error);
    EXPECT_THROW(ConvOp(false)({x, weight[0], past}, backend), c10::Error);
    EXPECT_THROW(ConvOp(false)({x, weight.narrow(0, 0, 2), past}, backend), c10::Error);
    EXPECT_THROW(ConvOp(false)({x, weight.narrow(2, 0, 7), past}, backend), c10::Error);
    EXPECT_THROW(ConvOp(false)({x, weight, past.narrow(2, 0, 2)}, backend), c10::Error);
    EXPECT_THROW(ConvOp(false)({x, Tensor(), past}, backend), c10::Error);
    EXPECT_THROW(ConvOp(false)({x, at::randn({3, 17, 8}), Tensor()}, backend), c10::Error);
  }
  ExpectNoSecondDerivative(ConvOp(true), {x, weight, past});
}

}  // namespace
}  // namespace tensorcache::train
