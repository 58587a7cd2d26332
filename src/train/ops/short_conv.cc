#include "train/ops/short_conv.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "tensorcache/kernels/short_conv.h"
#include "train/ops/autograd.h"
#include "train/ops/items.h"

namespace tensorcache::train {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

ShortConvShape ShapeOf(const ShortConvInputs& in) {
  return {.B = in.x.size(0),
          .H = in.x.size(2),
          .T = in.x.size(1),
          .D = in.x.size(3),
          .taps = in.weight.defined() ? in.weight.size(1) : 0,
          .unit = in.unit};
}

void CheckInputs(const ShortConvInputs& in) {
  constexpr const char* kOp = "short_conv";
  TORCH_CHECK(in.x.defined() && in.x.dim() == 4 && in.x.size(3) >= 1, kOp, ": x must be (B, T, H, D), D >= 1");
  TORCH_CHECK(!in.weight.defined() || in.weight.dim() == 3, kOp, ": the weight must be (H, taps, D)");
  const ShortConvShape n = ShapeOf(in);
  TORCH_CHECK(n.taps <= kMaxShortConvTaps, kOp, ": at most ", kMaxShortConvTaps, " taps, not ", n.taps);
  if (in.weight.defined()) ExpectSizes(kOp, "the weight", in.weight, {n.H, n.taps, n.D});
  if (in.past.defined()) {
    ExpectSizes(kOp, "past", in.past, {n.B, n.H, std::max<int64_t>(0, n.taps - 1), n.D});
  }
}

const float* DataOf(const Tensor& x) { return x.defined() ? x.const_data_ptr<float>() : nullptr; }

void ExpectValid(const Status& status) { TORCH_CHECK(status.ok(), status.message()); }

Tensor Forward(const ShortConvInputs& in) {
  Tensor y = at::empty(in.x.sizes(), in.x.options());
  const ShortConvForwardArgs<float> args{.shape = ShapeOf(in),
                                         .x = RowsOf<const float>(in.x, kTokenMajor),
                                         .weight = DataOf(in.weight),
                                         .past = RowsOf<const float>(in.past, kHeadMajor),
                                         .y = RowsOf<float>(y, kTokenMajor)};
  ExpectValid(ValidateShortConv(args));
  ForEachItemRange(args.shape.B * args.shape.H, 0, [&](int64_t begin, int64_t end, float*) {
    ShortConvForward(args, begin, end);
    return OkStatus();
  });
  return y;
}

class FusedShortConv : public torch::autograd::Function<FusedShortConv> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const std::optional<Tensor>& weight,
                        const std::optional<Tensor>& past, bool unit) {
    const ShortConvInputs in{
        .x = x, .weight = weight.value_or(Tensor()), .past = past.value_or(Tensor()), .unit = unit};
    ctx->save_for_backward({in.x, in.weight, in.past});
    ctx->saved_data["unit"] = unit;
    return Forward(in);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& d_outputs) {
    RefuseSecondDerivative();
    const variable_list saved = ctx->get_saved_variables();
    const ShortConvInputs in{
        .x = saved[0], .weight = saved[1], .past = saved[2], .unit = ctx->saved_data["unit"].toBool()};
    const ShortConvShape n = ShapeOf(in);
    size_t edges = 0;  // inputs that are none have no edge
    Tensor d_x, d_weight, d_past;
    if (ctx->needs_input_grad(edges++)) d_x = at::empty(in.x.sizes(), in.x.options());
    if (in.weight.defined() && ctx->needs_input_grad(edges++)) {
      d_weight = at::empty({n.B, n.H, n.taps, n.D}, in.x.options());
    }
    if (in.past.defined() && ctx->needs_input_grad(edges++)) d_past = at::empty(in.past.sizes(), in.past.options());
    const Tensor d_y = WithContiguousRows(d_outputs[0]);
    const ShortConvBackwardArgs<float> args{.shape = n,
                                            .x = RowsOf<const float>(in.x, kTokenMajor),
                                            .weight = DataOf(in.weight),
                                            .past = RowsOf<const float>(in.past, kHeadMajor),
                                            .d_y = RowsOf<const float>(d_y, kTokenMajor),
                                            .d_x = RowsOf<float>(d_x, kTokenMajor),
                                            .d_weight = RowsOf<float>(d_weight, kHeadMajor),
                                            .d_past = RowsOf<float>(d_past, kHeadMajor)};
    ExpectValid(ValidateShortConvBackward(args));
    ForEachItemRange(n.B * n.H, ShortConvBackwardScratchFloats(n), [&](int64_t begin, int64_t end, float* scratch) {
      ShortConvBackward(args, begin, end, scratch);
      return OkStatus();
    });
    if (d_weight.defined()) d_weight = n.B == 1 ? d_weight.squeeze(0) : d_weight.sum(0);
    return {d_x, d_weight, d_past, Tensor()};
  }
};

Tensor Composite(const ShortConvInputs& in) {
  const ShortConvShape n = ShapeOf(in);
  const at::ScalarType precision = in.x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const Tensor x = in.x.to(precision);
  Tensor z = x;
  if (n.taps > 0) {
    const Tensor past =
        in.past.defined() ? in.past.to(precision).transpose(1, 2) : at::zeros({n.B, n.taps - 1, n.H, n.D}, x.options());
    const Tensor all = at::cat({past, x}, 1), weight = in.weight.to(precision);
    for (int64_t j = 0; j < n.taps; ++j) z = z + weight.select(1, j) * all.narrow(1, n.taps - 1 - j, n.T);
  }
  if (in.unit) z = z * (z.square().sum(-1, /*keepdim=*/true) + 1e-12).rsqrt();
  return z.to(in.x.scalar_type()).contiguous();
}

}  // namespace

Tensor ShortConv(const ShortConvInputs& inputs, Backend backend) {
  CheckInputs(inputs);
  if (!UseFused(backend, {inputs.x, inputs.weight, inputs.past})) return Composite(inputs);
  const ShortConvInputs in{.x = WithContiguousRows(inputs.x),
                           .weight = inputs.weight.defined() ? inputs.weight.contiguous() : Tensor(),
                           .past = WithContiguousRows(inputs.past),
                           .unit = inputs.unit};
  if (!NeedsGradient({in.x, in.weight, in.past})) return Forward(in);
  return FusedShortConv::apply(in.x, OrNone(in.weight), OrNone(in.past), in.unit);
}

}  // namespace tensorcache::train
