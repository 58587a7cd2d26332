#include "train/ops/read_norm.h"

#include "tensorcache/kernels/read_norm.h"
#include "train/ops/autograd.h"
#include "train/ops/items.h"
#include "train/ops/row_blocks.h"

namespace tensorcache::train {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kOp = "read_norm";

ReadNormShape ShapeOf(const Tensor& x) { return {.B = x.size(0), .H = x.size(2), .T = x.size(1), .D = x.size(3)}; }

const float* DataOrNull(const Tensor& x) { return x.defined() ? x.const_data_ptr<float>() : nullptr; }
float* MutableOrNull(const Tensor& x) { return x.defined() ? x.mutable_data_ptr<float>() : nullptr; }

// x with contiguous rows; gamma and c contiguous.
Tensor Forward(const Tensor& x, const Tensor& gamma, const Tensor& c) {
  const Tensor y = at::empty(x.sizes(), x.options());
  const ReadNormForwardArgs<float> args{.shape = ShapeOf(x),
                                        .x = RowsOf<const float>(x, kTokenMajor),
                                        .gamma = DataOrNull(gamma),
                                        .c = DataOrNull(c),
                                        .y = RowsOf<float>(y, kTokenMajor)};
  const Status valid = ValidateReadNorm(args);
  TORCH_CHECK(valid.ok(), valid.message());
  const ReadNormShape& n = args.shape;
  ParallelRows(n.B * n.H, n.T * n.D, [&](int64_t begin, int64_t end) { ReadNormForward(args, begin, end); });
  return y;
}

class FusedReadNorm : public torch::autograd::Function<FusedReadNorm> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& gamma, const std::optional<Tensor>& c) {
    const Tensor floors = c.value_or(Tensor());
    ctx->save_for_backward({x, gamma, floors});
    return Forward(x, gamma, floors);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    RefuseSecondDerivative();
    const variable_list saved = ctx->get_saved_variables();
    const Tensor &x = saved[0], &gamma = saved[1], &c = saved[2];
    const Tensor d_y = WithContiguousRows(grads[0]);
    const ReadNormShape n = ShapeOf(x);
    Tensor d_x, d_gamma, d_c;
    if (ctx->needs_input_grad(0)) d_x = at::empty(x.sizes(), x.options());
    if (ctx->needs_input_grad(1)) d_gamma = at::empty({n.B, n.H, n.D}, x.options());
    if (c.defined() && ctx->needs_input_grad(2)) d_c = at::empty({n.B, n.H}, x.options());
    const ReadNormBackwardArgs<float> args{.shape = n,
                                           .x = RowsOf<const float>(x, kTokenMajor),
                                           .gamma = DataOrNull(gamma),
                                           .c = DataOrNull(c),
                                           .d_y = RowsOf<const float>(d_y, kTokenMajor),
                                           .d_x = RowsOf<float>(d_x, kTokenMajor),
                                           .d_gamma = MutableOrNull(d_gamma),
                                           .d_c = MutableOrNull(d_c)};
    const Status valid = ValidateReadNormBackward(args);
    TORCH_CHECK(valid.ok(), valid.message());
    ParallelRows(n.B * n.H, n.T * n.D, [&](int64_t begin, int64_t end) { ReadNormBackward(args, begin, end); });
    if (d_gamma.defined()) d_gamma = d_gamma.sum(0);
    if (d_c.defined()) d_c = d_c.sum(0);
    return {d_x, d_gamma, d_c};
  }
};

Tensor Composite(const Tensor& x, const Tensor& gamma, const Tensor& c) {
  const at::ScalarType precision = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const Tensor wide = x.to(precision);
  Tensor sum = wide.square().mean(-1, /*keepdim=*/true);
  sum = c.defined() ? sum + c.to(precision).square().unsqueeze(-1) : sum + kReadNormFloor;
  // Both branches of the choice have finite gradients: 0 times an infinite one would be NaN.
  const Tensor is_zero = sum == 0;
  const Tensor r = sum.masked_fill(is_zero, 1).rsqrt().masked_fill(is_zero, 0);
  return (wide * r * gamma.to(precision)).to(x.scalar_type()).contiguous();
}

}  // namespace

Tensor ReadNorm(const Tensor& x, const Tensor& gamma, const Tensor& c, Backend backend) {
  TORCH_CHECK(x.dim() == 4 && x.size(3) >= 1, kOp, ": x must be (B, T, H, D) with D >= 1, not ", x.sizes());
  ExpectSizes(kOp, "gamma", gamma, {x.size(2), x.size(3)});
  if (c.defined()) ExpectSizes(kOp, "c", c, {x.size(2)});
  if (!UseFused(backend, {x, gamma, c})) return Composite(x, gamma, c);
  const Tensor rows = WithContiguousRows(x), gains = gamma.contiguous(), floors = c.defined() ? c.contiguous() : c;
  if (!NeedsGradient({rows, gains, floors})) return Forward(rows, gains, floors);
  return FusedReadNorm::apply(rows, gains, OrNone(floors));
}

}  // namespace tensorcache::train
