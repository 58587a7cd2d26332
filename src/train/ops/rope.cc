#include "train/ops/rope.h"

#include <cstring>
#include <functional>

#include "train/ops/fused.h"
#include "train/ops/rows.h"

namespace tensorcache::train {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

void CheckTable(const RopeTable& table, const Tensor& x, int64_t head_dim) {
  TORCH_CHECK(table.cos.dim() == 2 && table.cos.sizes() == table.sin.sizes(), "cos and sin must be (T, D / 2), got ",
              table.cos.sizes(), " and ", table.sin.sizes());
  TORCH_CHECK(table.cos.size(0) == x.size(1), "the rotary table has ", table.cos.size(0), " positions, the block ",
              x.size(1), " tokens");
  TORCH_CHECK(2 * table.cos.size(1) <= head_dim, "the rotary table turns ", 2 * table.cos.size(1), " columns of ",
              head_dim);
}

RopeTable ContiguousTable(const RopeTable& table) {
  return {.cos = table.cos.contiguous(), .sin = table.sin.contiguous(), .pairing = table.pairing};
}

// in (B, T, heads, D) with contiguous rows -> out, contiguous, the same size or `in` itself: the first `rotated_heads`
// heads rotated, the others copied.
void RotateHeads(const Tensor& in, const RopeTable& table, bool inverse, int64_t rotated_heads, const Tensor& out) {
  const int64_t T = in.size(1), heads = in.size(2), D = in.size(3), pairs = table.cos.size(1);
  const auto from = RowsOf<const float>(in, kTokenMajor);
  const auto to = RowsOf<float>(out, kTokenMajor);
  const float *cos = table.cos.const_data_ptr<float>(), *sin = table.sin.const_data_ptr<float>();
  const bool copy = from.data != to.data;
  const auto rotate = [&](int64_t b, int64_t t, int64_t tokens) {
    ApplyRope({.in = {from.At(b, 0, t), 0, from.head, from.token},
               .out = {to.At(b, 0, t), 0, to.head, to.token},
               .heads = rotated_heads,
               .tokens = tokens,
               .dims = D,
               .rotary_dims = 2 * pairs,
               .cos = {.data = cos + t * pairs, .token = pairs},
               .sin = {.data = sin + t * pairs, .token = pairs},
               .pairing = table.pairing,
               .inverse = inverse});
    if (!copy) return;
    for (int64_t i = t; i < t + tokens; ++i) {
      for (int64_t h = rotated_heads; h < heads; ++h) {
        std::memcpy(to.At(b, h, i), from.At(b, h, i), static_cast<size_t>(D) * sizeof(float));
      }
    }
  };
  ParallelRows(in.size(0) * T, heads * D, [&](int64_t begin, int64_t end) {
    while (begin < end) {
      const int64_t t = begin % T, tokens = std::min(T - t, end - begin);
      rotate(begin / T, t, tokens);
      begin += tokens;
    }
  });
}

// The same into a new tensor.
Tensor RotatedHeads(const Tensor& in, const RopeTable& table, bool inverse, int64_t rotated_heads) {
  Tensor out = at::empty(in.sizes(), in.options());
  RotateHeads(WithContiguousRows(in), table, inverse, rotated_heads, out);
  return out;
}

class FusedRope : public torch::autograd::Function<FusedRope> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const RopeTable& table, bool inverse) {
    ctx->save_for_backward({table.cos, table.sin});
    ctx->saved_data["pairing"] = static_cast<int64_t>(table.pairing);
    ctx->saved_data["inverse"] = inverse;
    return RotatedHeads(x, table, inverse, x.size(2));
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    RefuseSecondDerivative();
    const variable_list saved = ctx->get_saved_variables();
    const RopeTable table = {saved[0], saved[1], static_cast<RopePairing>(ctx->saved_data["pairing"].toInt())};
    return {RotatedHeads(grads[0], table, !ctx->saved_data["inverse"].toBool(), grads[0].size(2)), Tensor(), Tensor()};
  }
};

class FusedProjection : public torch::autograd::Function<FusedProjection> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias,
                        const RopeTable& table, int64_t head_dim, int64_t rotated_heads) {
    const Tensor rows = AsRows(x);
    ctx->save_for_backward({rows, weight, table.cos, table.sin});
    ctx->saved_data["pairing"] = static_cast<int64_t>(table.pairing);
    ctx->saved_data["rotated_heads"] = rotated_heads;
    ctx->saved_data["bias"] = bias.has_value();
    const Tensor y = at::empty({x.size(0), x.size(1), weight.size(0) / head_dim, head_dim}, x.options());
    Tensor flat = y.view({rows.size(0), weight.size(0)});
    bias ? at::addmm_out(flat, *bias, rows, weight.t()) : at::mm_out(flat, rows, weight.t());
    if (rotated_heads > 0) RotateHeads(y, table, /*inverse=*/false, rotated_heads, y);
    return y;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    RefuseSecondDerivative();
    const variable_list saved = ctx->get_saved_variables();
    const Tensor &x = saved[0], &weight = saved[1];
    const RopeTable table = {saved[2], saved[3], static_cast<RopePairing>(ctx->saved_data["pairing"].toInt())};
    const int64_t rotated_heads = ctx->saved_data["rotated_heads"].toInt();
    const Tensor heads =
        rotated_heads > 0 ? RotatedHeads(grads[0], table, /*inverse=*/true, rotated_heads) : grads[0].contiguous();
    const Tensor dy = heads.view({x.size(0), weight.size(0)});
    Tensor dx, dweight, dbias;
    if (ctx->needs_input_grad(0)) dx = at::mm(dy, weight).view({heads.size(0), heads.size(1), x.size(1)});
    if (ctx->needs_input_grad(1)) dweight = at::mm(dy.t(), x);
    if (ctx->saved_data["bias"].toBool() && ctx->needs_input_grad(2)) dbias = dy.sum(0);
    return {dx, dweight, dbias, Tensor(), Tensor(), Tensor()};
  }
};

Tensor CompositeRope(const Tensor& x, const RopeTable& table, bool inverse) {
  const int64_t pairs = table.cos.size(1);
  const bool half_split = table.pairing == RopePairing::kHalfSplit;
  const Tensor turned =
      x.narrow(-1, 0, 2 * pairs).unflatten(-1, half_split ? at::IntArrayRef{2, pairs} : at::IntArrayRef{pairs, 2});
  const int64_t pair_dim = half_split ? -2 : -1;
  const Tensor a = turned.select(pair_dim, 0), b = turned.select(pair_dim, 1);  // (B, T, heads, pairs)
  const Tensor cos = table.cos.unsqueeze(1), sin = inverse ? table.sin.unsqueeze(1).neg() : table.sin.unsqueeze(1);
  const Tensor y = at::stack({a * cos - b * sin, b * cos + a * sin}, pair_dim).flatten(-2).to(x.scalar_type());
  return at::cat({y, x.narrow(-1, 2 * pairs, x.size(-1) - 2 * pairs)}, -1);
}

RopeTable MakeTable(const RopeFrequencies& frequencies, RopePairing pairing, int64_t tokens, at::Device device,
                    const std::function<void(float* cos, float* sin)>& fill) {
  const Tensor cos = at::empty({tokens, frequencies.pairs}, at::kFloat), sin = at::empty_like(cos);
  fill(cos.mutable_data_ptr<float>(), sin.mutable_data_ptr<float>());
  return {.cos = cos.to(device), .sin = sin.to(device), .pairing = pairing};
}

}  // namespace

RopeTable MakeRopeTable(const RopeFrequencies& frequencies, RopePairing pairing, int64_t first, int64_t tokens,
                        at::Device device) {
  return MakeTable(frequencies, pairing, tokens, device,
                   [&](float* cos, float* sin) { FillRopeTable(frequencies, first, tokens, cos, sin); });
}

RopeTable MakeRopeTable(const RopeFrequencies& frequencies, RopePairing pairing, std::span<const int64_t> positions,
                        at::Device device) {
  return MakeTable(frequencies, pairing, std::ssize(positions), device,
                   [&](float* cos, float* sin) { FillRopeTable(frequencies, positions, cos, sin); });
}

Tensor Rope(const Tensor& x, const RopeTable& table, bool inverse, Backend backend) {
  TORCH_CHECK(x.dim() == 4, "rope takes (B, T, heads, D), got ", x.sizes());
  CheckTable(table, x, x.size(3));
  if (!UseFused(backend, {x, table.cos, table.sin})) return CompositeRope(x, table, inverse);
  return FusedRope::apply(x, ContiguousTable(table), inverse);
}

Tensor ProjectRotary(const RotaryProjection& args, Backend backend) {
  const auto& [x, weight, bias, head_dim, rotated_heads, table] = args;
  TORCH_CHECK(x.dim() == 3 && weight.dim() == 2 && head_dim > 0 && weight.size(0) % head_dim == 0, "projection of ",
              x.sizes(), " by ", weight.sizes(), " into heads of ", head_dim);
  const int64_t heads = weight.size(0) / head_dim;
  TORCH_CHECK(0 <= rotated_heads && rotated_heads <= heads, "cannot rotate ", rotated_heads, " of ", heads, " heads");
  if (rotated_heads > 0) CheckTable(table, x, head_dim);
  if (UseFused(backend, {x, weight, bias, table.cos, table.sin})) {
    return FusedProjection::apply(x, weight, OrNone(bias), rotated_heads > 0 ? ContiguousTable(table) : table, head_dim,
                                  rotated_heads);
  }
  const Tensor y = at::linear(x, weight, OrNone(bias)).unflatten(-1, {heads, head_dim});
  if (rotated_heads == 0) return y;
  const Tensor rotated = CompositeRope(y.narrow(2, 0, rotated_heads), table, /*inverse=*/false);
  return at::cat({rotated, y.narrow(2, rotated_heads, heads - rotated_heads)}, 2);
}

}  // namespace tensorcache::train
