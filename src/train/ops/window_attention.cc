#include "train/ops/window_attention.h"

#include <array>
#include <vector>

#include "tensorcache/kernels/window_attention.h"
#include "train/ops/autograd.h"
#include "train/ops/items.h"

namespace tensorcache::train {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The inputs that may get a gradient, in the order in which autograd knows them.
enum Field { kQ, kK, kV, kPastK, kPastV, kSinkK, kSinkV, kQSink, kFields };

variable_list Tensors(const WindowAttentionInputs& in) {
  return {in.q, in.k, in.v, in.past_k, in.past_v, in.sink_k, in.sink_v, in.q_sink};
}

WindowAttentionShape ShapeOf(const WindowAttentionInputs& in) {
  return {.B = in.q.size(0),
          .H = in.q.size(2),
          .G = in.k.size(2),
          .T = in.q.size(1),
          .D = in.q.size(3),
          .Dv = in.v.size(3),
          .W = in.window == 0 ? kUnboundedWindow : in.window,
          .P = in.past_k.defined() ? in.past_k.size(2) : 0,
          .S = in.sink_k.defined() ? in.sink_k.size(2) : 0,
          .position = in.position};
}

void CheckInputs(const WindowAttentionInputs& in) {
  constexpr const char* kOp = "window_attention";
  TORCH_CHECK(in.q.dim() == 4 && in.k.dim() == 4 && in.v.dim() == 4, kOp, ": q, k and v have 4 dimensions");
  TORCH_CHECK(in.past_k.defined() == in.past_v.defined() && in.sink_k.defined() == in.sink_v.defined(), kOp,
              ": keys and values of past and sinks come together");
  const WindowAttentionShape n = ShapeOf(in);
  TORCH_CHECK(n.G > 0 && n.H % n.G == 0, kOp, ": H = ", n.H, " query heads must be a multiple of G = ", n.G);
  TORCH_CHECK(n.W >= 1, kOp, ": the window must not be negative, not ", in.window);
  TORCH_CHECK(0 <= n.P && n.P <= n.position, kOp, ": a past of ", n.P, " tokens before position ", n.position);
  ExpectSizes(kOp, "k", in.k, {n.B, n.T, n.G, n.D});
  ExpectSizes(kOp, "v", in.v, {n.B, n.T, n.G, n.Dv});
  if (in.past_k.defined()) ExpectSizes(kOp, "past_k", in.past_k, {n.B, n.G, n.P, n.D});
  if (in.past_v.defined()) ExpectSizes(kOp, "past_v", in.past_v, {n.B, n.G, n.P, n.Dv});
  if (in.sink_k.defined()) ExpectSizes(kOp, "sink_k", in.sink_k, {n.B, n.G, n.S, n.D});
  if (in.sink_v.defined()) ExpectSizes(kOp, "sink_v", in.sink_v, {n.B, n.G, n.S, n.Dv});
  if (in.q_sink.defined()) ExpectSizes(kOp, "q_sink", in.q_sink, {n.B, n.T, n.H, n.D});
}

WindowAttentionArgs<float> KernelArgs(const WindowAttentionInputs& in) {
  const WindowAttentionShape shape = ShapeOf(in);
  return {.shape = shape,
          .q = RowsOf<const float>(in.q, kTokenMajor),
          .k = RowsOf<const float>(in.k, kTokenMajor),
          .v = RowsOf<const float>(in.v, kTokenMajor),
          .past = {.k = RowsOf<const float>(in.past_k, kHeadMajor),
                   .v = RowsOf<const float>(in.past_v, kHeadMajor),
                   .capacity = shape.P},
          .sink_k = RowsOf<const float>(in.sink_k, kHeadMajor),
          .sink_v = RowsOf<const float>(in.sink_v, kHeadMajor),
          .q_sink = RowsOf<const float>(in.q_sink, kTokenMajor),
          .scale = in.scale};
}

// `lse` (B, H, T), undefined if not wanted.
Tensor Forward(const WindowAttentionInputs& in, const Tensor& lse) {
  WindowAttentionArgs<float> args = KernelArgs(in);
  const WindowAttentionShape& n = args.shape;
  Tensor out = at::empty({n.B, n.T, n.H, n.Dv}, in.q.options());
  args.out = RowsOf<float>(out, kTokenMajor);
  args.lse = RowsOf<float>(lse, kHeadMajor);
  const Status valid = ValidateWindowAttention(args);
  TORCH_CHECK(valid.ok(), valid.message());
  ForEachItemRange(n.B * n.G, WindowAttentionScratchFloats(n), [&](int64_t begin, int64_t end, float* scratch) {
    return WindowAttentionForward(args, begin, end, scratch);
  });
  return out;
}

class FusedWindowAttention : public torch::autograd::Function<FusedWindowAttention> {
 public:
  // `edges` are the defined ones among Tensors(in): autograd takes no others.
  static Tensor forward(AutogradContext* ctx, at::TensorList /*edges*/, const WindowAttentionInputs& in) {
    const Tensor lse = at::empty({in.q.size(0), in.q.size(2), in.q.size(1)}, in.q.options());
    Tensor out = Forward(in, lse);
    variable_list saved = Tensors(in);
    saved.push_back(out);
    saved.push_back(lse);
    ctx->save_for_backward(std::move(saved));
    ctx->saved_data["window"] = in.window;
    ctx->saved_data["position"] = in.position;
    if (in.scale) ctx->saved_data["scale"] = *in.scale;
    ctx->set_materialize_grads(false);
    return out;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& d_outputs) {
    RefuseSecondDerivative();
    const variable_list saved = ctx->get_saved_variables();
    const WindowAttentionInputs in = SavedInputs(ctx, saved);
    std::array<bool, kFields> needed{};
    size_t edges = 0;
    for (size_t i = 0; i < kFields; ++i) needed[i] = saved[i].defined() && ctx->needs_input_grad(edges++);
    std::array<Tensor, kFields> gradients;
    if (d_outputs[0].defined()) gradients = Gradients(in, needed, saved[kFields], saved[kFields + 1], d_outputs[0]);

    variable_list result;
    for (size_t i = 0; i < kFields; ++i) {
      if (saved[i].defined()) result.push_back(needed[i] ? gradients[i] : Tensor());
    }
    result.emplace_back();  // for the inputs' struct
    return result;
  }

 private:
  static WindowAttentionInputs SavedInputs(AutogradContext* ctx, const variable_list& saved) {
    WindowAttentionInputs in{.q = saved[kQ],
                             .k = saved[kK],
                             .v = saved[kV],
                             .past_k = saved[kPastK],
                             .past_v = saved[kPastV],
                             .sink_k = saved[kSinkK],
                             .sink_v = saved[kSinkV],
                             .q_sink = saved[kQSink],
                             .window = ctx->saved_data["window"].toInt(),
                             .position = ctx->saved_data["position"].toInt()};
    if (const auto scale = ctx->saved_data.find("scale"); scale != ctx->saved_data.end()) {
      in.scale = scale->second.toDouble();
    }
    return in;
  }

  static std::array<Tensor, kFields> Gradients(const WindowAttentionInputs& in, const std::array<bool, kFields>& needed,
                                               const Tensor& out, const Tensor& lse, const Tensor& d_out) {
    const WindowAttentionArgs<float> args = KernelArgs(in);
    const WindowAttentionShape& n = args.shape;
    const variable_list tensors = Tensors(in);
    std::array<Tensor, kFields> gradients;
    for (size_t i = 0; i < kFields; ++i) {
      // The kernel computes those of q, k and v in any case.
      if (i <= kV || needed[i]) gradients[i] = at::empty(tensors[i].sizes(), tensors[i].options());
    }
    const Tensor d_out_rows = WithContiguousRows(d_out);
    const WindowAttentionGrads<float> grads{.out = RowsOf<const float>(out, kTokenMajor),
                                            .lse = RowsOf<const float>(lse, kHeadMajor),
                                            .dout = RowsOf<const float>(d_out_rows, kTokenMajor),
                                            .dq = RowsOf<float>(gradients[kQ], kTokenMajor),
                                            .dk = RowsOf<float>(gradients[kK], kTokenMajor),
                                            .dv = RowsOf<float>(gradients[kV], kTokenMajor),
                                            .dpast_k = RowsOf<float>(gradients[kPastK], kHeadMajor),
                                            .dpast_v = RowsOf<float>(gradients[kPastV], kHeadMajor),
                                            .dsink_k = RowsOf<float>(gradients[kSinkK], kHeadMajor),
                                            .dsink_v = RowsOf<float>(gradients[kSinkV], kHeadMajor),
                                            .dq_sink = RowsOf<float>(gradients[kQSink], kTokenMajor)};
    const Status valid = ValidateWindowAttentionBackward(args, grads);
    TORCH_CHECK(valid.ok(), valid.message());
    ForEachItemRange(n.B * n.G, WindowAttentionBackwardScratchFloats(n),
                     [&](int64_t begin, int64_t end, float* scratch) {
                       return WindowAttentionBackward(args, grads, begin, end, scratch);
                     });
    return gradients;
  }
};

}  // namespace

Tensor WindowAttention(const WindowAttentionInputs& inputs, Backend backend) {
  CheckInputs(inputs);
  WindowAttentionInputs in = inputs;
  const variable_list all = Tensors(in);
  if (!UseFused(backend, all)) return WindowAttentionComposite(in);
  for (Tensor* x : {&in.q, &in.k, &in.v, &in.past_k, &in.past_v, &in.sink_k, &in.sink_v, &in.q_sink}) {
    *x = WithContiguousRows(*x);
  }
  if (!NeedsGradient(all)) return Forward(in, /*lse=*/Tensor());
  variable_list edges = Tensors(in);
  std::erase_if(edges, [](const Tensor& x) { return !x.defined(); });
  return FusedWindowAttention::apply(at::TensorList(edges), in);
}

}  // namespace tensorcache::train
