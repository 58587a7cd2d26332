#include "train/ops/norm.h"

#include "tensorcache/kernels/norm.h"
#include "train/ops/autograd.h"
#include "train/ops/row_blocks.h"

namespace tensorcache::train {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

enum class Kind { kLayer, kRms };

// Gradients of the parameters are summed over this many blocks of rows, and then over the blocks: the same sums however
// many threads there are and whichever comes first.
constexpr int64_t kBlocks = 32;

template <Kind kKind>
class FusedNorm : public torch::autograd::Function<FusedNorm<kKind>> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias,
                        double eps) {
    const Tensor rows = AsRows(x), y = at::empty(x.sizes(), x.options());
    const Tensor scale = weight.contiguous(), offset = bias ? bias->contiguous() : Tensor();
    ctx->save_for_backward({rows, scale});
    ctx->saved_data["eps"] = eps;
    ctx->saved_data["bias"] = bias.has_value();
    const int64_t E = rows.size(1);
    NormArgs args = {.width = E,
                     .x = rows.const_data_ptr<float>(),
                     .x_stride = E,
                     .weight = scale.const_data_ptr<float>(),
                     .bias = bias ? offset.const_data_ptr<float>() : nullptr,
                     .eps = static_cast<float>(eps),
                     .y = y.mutable_data_ptr<float>(),
                     .y_stride = E};
    ParallelRows(rows.size(0), E, [args](int64_t begin, int64_t end) {
      NormArgs part = args;
      part.rows = end - begin;
      part.x += begin * part.x_stride;
      part.y += begin * part.y_stride;
      kKind == Kind::kLayer ? tensorcache::LayerNorm(part) : tensorcache::RmsNorm(part);
    });
    return y;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    RefuseSecondDerivative();
    const variable_list saved = ctx->get_saved_variables();
    const Tensor &x = saved[0], &weight = saved[1];
    const Tensor dy = grads[0].contiguous(), dx = at::empty(dy.sizes(), dy.options());
    const bool wants_bias = ctx->saved_data["bias"].toBool() && ctx->needs_input_grad(2);
    const int64_t N = x.size(0), E = x.size(1), block = (N + kBlocks - 1) / kBlocks;
    Tensor dweight, dbias;  // (kBlocks, E)
    if (ctx->needs_input_grad(1)) dweight = at::zeros({kBlocks, E}, x.options());
    if (wants_bias) dbias = at::zeros({kBlocks, E}, x.options());
    const NormBackwardArgs args = {.width = E,
                                   .x = x.const_data_ptr<float>(),
                                   .x_stride = E,
                                   .weight = weight.const_data_ptr<float>(),
                                   .eps = static_cast<float>(ctx->saved_data["eps"].toDouble()),
                                   .dy = dy.const_data_ptr<float>(),
                                   .dy_stride = E,
                                   .dx = dx.mutable_data_ptr<float>(),
                                   .dx_stride = E,
                                   .dweight = dweight.defined() ? dweight.mutable_data_ptr<float>() : nullptr,
                                   .dbias = dbias.defined() ? dbias.mutable_data_ptr<float>() : nullptr};
    ParallelRows(kBlocks, block * E, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        BackwardBlock(args, i, std::min(i * block, N), std::min(i * block + block, N));
    });
    if (dweight.defined()) dweight = dweight.sum(0);
    if (dbias.defined()) dbias = dbias.sum(0);
    return {dx, dweight, dbias, Tensor()};
  }

 private:
  // Rows [begin, end), with sums of their own.
  static void BackwardBlock(NormBackwardArgs args, int64_t index, int64_t begin, int64_t end) {
    args.rows = end - begin;
    args.x += begin * args.x_stride;
    args.dy += begin * args.dy_stride;
    args.dx += begin * args.dx_stride;
    if (args.dweight != nullptr) args.dweight += index * args.width;
    if (args.dbias != nullptr) args.dbias += index * args.width;
    kKind == Kind::kLayer ? LayerNormBackward(args) : RmsNormBackward(args);
  }
};

void CheckSizes(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  TORCH_CHECK(x.dim() >= 1 && x.size(-1) >= 1, "a norm needs rows of at least one number, got ", x.sizes());
  TORCH_CHECK(weight.dim() == 1 && weight.size(0) == x.size(-1), "norm of ", x.sizes(), " with a weight of ",
              weight.sizes());
  TORCH_CHECK(!bias.defined() || bias.sizes() == weight.sizes(), "norm of ", x.sizes(), " with a bias of ",
              bias.defined() ? bias.sizes() : at::IntArrayRef());
}

// The precision to compute in.
at::ScalarType Precision(const Tensor& x) { return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat; }

}  // namespace

Tensor LayerNorm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps, Backend backend) {
  CheckSizes(x, weight, bias);
  if (UseFused(backend, {x, weight, bias})) return FusedNorm<Kind::kLayer>::apply(x, weight, OrNone(bias), eps);
  const at::ScalarType precision = Precision(x);
  const Tensor centred = x.to(precision) - x.to(precision).mean(-1, /*keepdim=*/true);
  const Tensor r = (centred.square().mean(-1, /*keepdim=*/true) + eps).rsqrt();
  Tensor y = centred * r * weight.to(precision);
  if (bias.defined()) y = y + bias.to(precision);
  return y.to(x.scalar_type());
}

Tensor RmsNorm(const Tensor& x, const Tensor& weight, double eps, Backend backend) {
  CheckSizes(x, weight, Tensor());
  if (UseFused(backend, {x, weight})) return FusedNorm<Kind::kRms>::apply(x, weight, std::optional<Tensor>(), eps);
  const at::ScalarType precision = Precision(x);
  const Tensor wide = x.to(precision);
  const Tensor r = (wide.square().mean(-1, /*keepdim=*/true) + eps).rsqrt();
  return (wide * r * weight.to(precision)).to(x.scalar_type());
}

}  // namespace tensorcache::train
