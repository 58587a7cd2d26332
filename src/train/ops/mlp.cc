#include "train/ops/mlp.h"

#include "kernels/norm/activation.h"
#include "train/ops/autograd.h"
#include "train/ops/row_blocks.h"

namespace tensorcache::train {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// h (R, F or 2 F) -> a (R, F), contiguous.
void Activate(Activation activation, const Tensor& h, const Tensor& a) {
  const int64_t width = a.size(1), stride = h.size(1);
  const float* from = h.const_data_ptr<float>();
  float* to = a.mutable_data_ptr<float>();
  ParallelRows(h.size(0), width, [=](int64_t begin, int64_t end) {
    Gate({.activation = activation,
          .rows = end - begin,
          .width = width,
          .a = from + begin * stride,
          .a_stride = stride,
          .b = stride > width ? from + begin * stride + width : nullptr,
          .b_stride = stride,
          .y = to + begin * width,
          .y_stride = width});
  });
}

// dh (R, F or 2 F), whose last F columns hold the gradient of a, becomes that of h.
void ActivateBackward(Activation activation, const Tensor& h, int64_t width, const Tensor& dh) {
  const int64_t stride = h.size(1);
  const float* from = h.const_data_ptr<float>();
  float* to = dh.mutable_data_ptr<float>();
  ParallelRows(h.size(0), stride, [=](int64_t begin, int64_t end) {
    float* first = to + begin * stride;
    float* last = first + stride - width;
    GateBackward({.activation = activation,
                  .rows = end - begin,
                  .width = width,
                  .a = from + begin * stride,
                  .a_stride = stride,
                  .b = stride > width ? from + begin * stride + width : nullptr,
                  .b_stride = stride,
                  .dy = last,
                  .dy_stride = stride,
                  .da = first,
                  .da_stride = stride,
                  .db = stride > width ? last : nullptr,
                  .db_stride = stride});
  });
}

// `in` with x (N, E) -> y (N, E). h (N, F or 2 F) keeps the projections before the activation; undefined: nobody needs
// them.
void Forward(const MlpInputs& in, const Tensor& h, const Tensor& y) {
  const int64_t N = in.x.size(0), block = RowsPerBlock(N);
  const Tensor a = at::empty({block, in.down_weight.size(1)}, y.options());
  const Tensor scratch = h.defined() ? Tensor() : at::empty({block, in.in_weight.size(0)}, y.options());
  ForEachRowBlock(N, [&](int64_t first, int64_t count) {
    Tensor h_block = h.defined() ? h.narrow(0, first, count) : scratch.narrow(0, 0, count);
    Tensor a_block = a.narrow(0, 0, count), y_block = y.narrow(0, first, count);
    Project(in.x.narrow(0, first, count), in.in_weight, in.in_bias, h_block);
    Activate(in.activation, h_block, a_block);
    Project(a_block, in.down_weight, in.down_bias, y_block);
  });
}

// Of the inputs; only those that are defined are computed.
struct Gradients {
  Tensor x, in_weight, in_bias, down_weight, down_bias;
};

void Backward(const MlpInputs& in, const Tensor& h, const Tensor& dy, Gradients& gradients) {
  const int64_t N = h.size(0), F = in.down_weight.size(1), block = RowsPerBlock(N);
  const Tensor a = at::empty({block, F}, h.options()), dh = at::empty({block, h.size(1)}, h.options());
  ForEachRowBlock(N, [&](int64_t first, int64_t count) {
    const Tensor h_block = h.narrow(0, first, count), dy_block = dy.narrow(0, first, count);
    if (gradients.down_weight.defined()) {
      const Tensor a_block = a.narrow(0, 0, count);
      Activate(in.activation, h_block, a_block);
      AddProduct(first == 0, dy_block, a_block, gradients.down_weight);
    }
    if (gradients.down_bias.defined()) AddColumns(first == 0, dy_block, gradients.down_bias);
    if (!gradients.x.defined() && !gradients.in_weight.defined() && !gradients.in_bias.defined()) return;
    const Tensor dh_block = dh.narrow(0, 0, count);
    Tensor da_block = dh_block.narrow(1, h.size(1) - F, F);
    at::mm_out(da_block, dy_block, in.down_weight);
    ActivateBackward(in.activation, h_block, F, dh_block);
    if (gradients.in_weight.defined()) {
      AddProduct(first == 0, dh_block, in.x.narrow(0, first, count), gradients.in_weight);
    }
    if (gradients.in_bias.defined()) AddColumns(first == 0, dh_block, gradients.in_bias);
    if (gradients.x.defined()) {
      Tensor dx_block = gradients.x.narrow(0, first, count);
      at::mm_out(dx_block, dh_block, in.in_weight);
    }
  });
}

class FusedMlp : public torch::autograd::Function<FusedMlp> {
 public:
  // Biases are the last tensors because they may be none; `in` holds the same tensors once more.
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& in_weight, const Tensor& down_weight,
                        const std::optional<Tensor>& in_bias, const std::optional<Tensor>& down_bias,
                        const MlpInputs& in) {
    MlpInputs flat = in;
    flat.x = AsRows(x);
    const Tensor h = at::empty({flat.x.size(0), in_weight.size(0)}, x.options()), y = at::empty(x.sizes(), x.options());
    Forward(flat, h, y.view({-1, x.size(-1)}));
    ctx->save_for_backward({flat.x, in_weight, down_weight, h});
    ctx->saved_data["in_bias"] = in_bias.has_value();
    ctx->saved_data["down_bias"] = down_bias.has_value();
    ctx->saved_data["activation"] = static_cast<int64_t>(in.activation);
    return y;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    RefuseSecondDerivative();
    const variable_list saved = ctx->get_saved_variables();
    const MlpInputs in = {.x = saved[0],
                          .in_weight = saved[1],
                          .down_weight = saved[2],
                          .activation = static_cast<Activation>(ctx->saved_data["activation"].toInt())};
    const bool has_in_bias = ctx->saved_data["in_bias"].toBool(), has_down_bias = ctx->saved_data["down_bias"].toBool();
    const auto wanted = [&](bool wants, at::IntArrayRef sizes) {
      return wants ? SumOver(in.x.size(0), sizes, in.x.options()) : Tensor();
    };
    Gradients gradients = {
        .x = wanted(ctx->needs_input_grad(0), in.x.sizes()),
        .in_weight = wanted(ctx->needs_input_grad(1), in.in_weight.sizes()),
        .in_bias = wanted(has_in_bias && ctx->needs_input_grad(3), {in.in_weight.size(0)}),
        .down_weight = wanted(ctx->needs_input_grad(2), in.down_weight.sizes()),
        .down_bias = wanted(has_down_bias && ctx->needs_input_grad(has_in_bias ? 4 : 3), {in.down_weight.size(0)})};
    Backward(in, saved[3], AsRows(grads[0]), gradients);
    if (gradients.x.defined()) gradients.x = gradients.x.view(grads[0].sizes());
    return {gradients.x, gradients.in_weight, gradients.down_weight, gradients.in_bias, gradients.down_bias, Tensor()};
  }
};

Tensor Activated(Activation activation, const Tensor& h) {
  switch (activation) {
    case Activation::kSilu: return at::silu(h);
    case Activation::kGelu: return at::gelu(h, "none");
    case Activation::kGeluTanh: return at::gelu(h, "tanh");
  }
  TORCH_INTERNAL_ASSERT(false);
}

void CheckSizes(const MlpInputs& in) {
  const int64_t projections = in.gated ? 2 : 1;
  TORCH_CHECK(in.x.dim() >= 1 && in.in_weight.dim() == 2 && in.down_weight.dim() == 2 &&
                  in.in_weight.size(0) == projections * in.down_weight.size(1) &&
                  in.in_weight.size(1) == in.x.size(-1) && in.down_weight.size(0) == in.x.size(-1),
              "feed-forward of ", in.x.sizes(), " by ", in.in_weight.sizes(), " and ", in.down_weight.sizes(),
              in.gated ? " with a gate" : " without gate");
}

}  // namespace

Tensor Mlp(const MlpInputs& inputs, Backend backend) {
  CheckSizes(inputs);
  const auto& [x, in_weight, in_bias, down_weight, down_bias, activation, gated] = inputs;
  if (!UseFused(backend, {x, in_weight, in_bias, down_weight, down_bias})) {
    const Tensor h = at::linear(x, in_weight, OrNone(in_bias));
    const int64_t F = down_weight.size(1);
    const Tensor a = gated ? Activated(activation, h.narrow(-1, 0, F)) * h.narrow(-1, F, F) : Activated(activation, h);
    return at::linear(a, down_weight, OrNone(down_bias));
  }
  if (NeedsGradient({x, in_weight, in_bias, down_weight, down_bias})) {
    return FusedMlp::apply(x, in_weight, down_weight, OrNone(in_bias), OrNone(down_bias), inputs);
  }
  const at::NoGradGuard no_grad;
  MlpInputs flat = inputs;
  flat.x = AsRows(x);
  const Tensor y = at::empty(x.sizes(), x.options());
  Forward(flat, Tensor(), y.view({-1, x.size(-1)}));
  return y;
}

}  // namespace tensorcache::train
