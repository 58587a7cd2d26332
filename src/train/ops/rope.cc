#include "train/ops/rope.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>

#include "train/ops/autograd.h"
#include "train/ops/items.h"
#include "train/ops/row_blocks.h"

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

// Of (B, T, heads, D): the first `heads` heads are rotated, the others stay.
struct Rotation {
  RopeTable table;
  bool inverse = false;
  int64_t heads = 0;
};

// Tokens first .. first + count - 1 of in (B, T, heads, D), counted through all of the batch, to out (count, heads, D), whose
// tokens are `out_token` floats apart. Rows of `in` are contiguous. `out` is elsewhere, or the same tokens of a contiguous `in`.
void RotateTokens(const Tensor& in, const Rotation& rotation, int64_t first, int64_t count, float* out,
                  int64_t out_token) {
  const int64_t T = in.size(1), heads = in.size(2), D = in.size(3), pairs = rotation.table.cos.size(1);
  if (in.numel() == 0) return;
  const auto from = RowsOf<const float>(in, kTokenMajor);
  const float *cos = rotation.table.cos.const_data_ptr<float>(), *sin = rotation.table.sin.const_data_ptr<float>();
  const auto rotate = [&](int64_t b, int64_t t, int64_t tokens, float* to) {
    ApplyRope({.in = {from.At(b, 0, t), 0, from.head, from.token},
               .out = {to, 0, D, out_token},
               .heads = rotation.heads,
               .tokens = tokens,
               .dims = D,
               .rotary_dims = 2 * pairs,
               .cos = {.data = cos + t * pairs, .token = pairs},
               .sin = {.data = sin + t * pairs, .token = pairs},
               .pairing = rotation.table.pairing,
               .inverse = rotation.inverse});
    if (to == from.At(b, 0, t)) return;
    for (int64_t i = 0; i < tokens; ++i) {
      for (int64_t h = rotation.heads; h < heads; ++h) {
        std::memcpy(to + i * out_token + h * D, from.At(b, h, t + i), static_cast<size_t>(D) * sizeof(float));
      }
    }
  };
  ParallelRows(count, heads * D, [&](int64_t begin, int64_t end) {
    while (begin < end) {
      const int64_t t = (first + begin) % T, tokens = std::min(T - t, end - begin);
      rotate((first + begin) / T, t, tokens, out + begin * out_token);
      begin += tokens;
    }
  });
}

Tensor Rotated(const Tensor& x, const RopeTable& table, bool inverse) {
  Tensor y = at::empty(x.sizes(), x.options());
  RotateTokens(WithContiguousRows(x), {.table = table, .inverse = inverse, .heads = x.size(2)}, 0,
               x.size(0) * x.size(1), y.mutable_data_ptr<float>(), x.size(2) * x.size(3));
  return y;
}

class FusedRope : public torch::autograd::Function<FusedRope> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const RopeTable& table, bool inverse) {
    ctx->save_for_backward({table.cos, table.sin});
    ctx->saved_data["pairing"] = static_cast<int64_t>(table.pairing);
    ctx->saved_data["inverse"] = inverse;
    return Rotated(x, table, inverse);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    RefuseSecondDerivative();
    const variable_list saved = ctx->get_saved_variables();
    const RopeTable table = {saved[0], saved[1], static_cast<RopePairing>(ctx->saved_data["pairing"].toInt())};
    return {Rotated(grads[0], table, !ctx->saved_data["inverse"].toBool()), Tensor(), Tensor()};
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
    const Rotation rotation = {.table = table, .heads = rotated_heads};
    const Tensor flat = y.view({rows.size(0), weight.size(0)});
    ForEachRowBlock(rows.size(0), [&](int64_t first, int64_t count) {
      Tensor block = flat.narrow(0, first, count);
      Project(rows.narrow(0, first, count), weight, bias.value_or(Tensor()), block);
      if (rotated_heads > 0) RotateTokens(y, rotation, first, count, block.mutable_data_ptr<float>(), weight.size(0));
    });
    return y;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    RefuseSecondDerivative();
    const variable_list saved = ctx->get_saved_variables();
    const Tensor &x = saved[0], &weight = saved[1];
    const Rotation rotation = {
        .table = {saved[2], saved[3], static_cast<RopePairing>(ctx->saved_data["pairing"].toInt())},
        .inverse = true,
        .heads = ctx->saved_data["rotated_heads"].toInt()};
    const int64_t N = x.size(0), columns = weight.size(0);
    Tensor dx, dweight, dbias;
    if (ctx->needs_input_grad(0)) dx = at::empty(x.sizes(), x.options());
    if (ctx->needs_input_grad(1)) dweight = SumOver(N, weight.sizes(), x.options());
    if (ctx->saved_data["bias"].toBool() && ctx->needs_input_grad(2)) dbias = SumOver(N, {columns}, x.options());
    const Tensor dy = rotation.heads > 0 ? WithContiguousRows(grads[0]) : grads[0].contiguous();
    const Tensor scratch = rotation.heads > 0 ? at::empty({RowsPerBlock(N), columns}, x.options()) : Tensor();
    ForEachRowBlock(N, [&](int64_t first, int64_t count) {
      Tensor block;  // the gradient before the rotation, (count, columns)
      if (rotation.heads > 0) {
        block = scratch.narrow(0, 0, count);
        RotateTokens(dy, rotation, first, count, block.mutable_data_ptr<float>(), columns);
      } else {
        block = dy.view({N, columns}).narrow(0, first, count);
      }
      if (dx.defined()) {
        Tensor dx_block = dx.narrow(0, first, count);
        at::mm_out(dx_block, block, weight);
      }
      if (dweight.defined()) AddProduct(first == 0, block, x.narrow(0, first, count), dweight);
      if (dbias.defined()) AddColumns(first == 0, block, dbias);
    });
    if (dx.defined()) dx = dx.view({dy.size(0), dy.size(1), x.size(1)});
    return {dx, dweight, dbias, Tensor(), Tensor(), Tensor()};
  }
};

// out (count, heads, D) += rows of in (B, T, heads, D), tokens first .. first + count - 1 counted through all of the batch.
// `out_token` floats lie between the tokens of `out`.
void AddTokens(const Tensor& in, int64_t first, int64_t count, float* out, int64_t out_token) {
  const int64_t T = in.size(1), heads = in.size(2), D = in.size(3);
  const auto from = RowsOf<const float>(in, kTokenMajor);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t b = (first + i) / T, t = (first + i) % T;
    for (int64_t h = 0; h < heads; ++h) {
      const float* row = from.At(b, h, t);
      float* sum = out + i * out_token + h * D;
      for (int64_t c = 0; c < D; ++c) sum[c] += row[c];
    }
  }
}

// The gradient of x from those of its six parts, which follow one another in the order of SplitHeads; a part whose gradient is
// undefined adds nothing.
class SplitGradient {
 public:
  SplitGradient(const variable_list& grads, int64_t query_heads, const RopeTable& table, const Tensor& like)
      : H_(query_heads),
        G_((like.size(2) - query_heads) / 2),
        table_(table),
        dx_(at::empty(like.sizes(), like.options())) {
    for (size_t i = 0; i < grads.size(); ++i) parts_[i] = WithContiguousRows(grads[i]);
  }

  Tensor Make() {
    constexpr int64_t kTokens = 32;  // which stay in the second cache level from part to part
    ParallelRows(dx_.size(0) * dx_.size(1), dx_.size(2) * dx_.size(3), [&](int64_t begin, int64_t end) {
      for (int64_t first = begin; first < end; first += kTokens) {
        const int64_t count = std::min(kTokens, end - first);
        Fill(parts_[0], parts_[3], 0, H_, first, count);
        Fill(parts_[1], parts_[4], H_, G_, first, count);
        Fill({}, parts_[2], H_ + G_, G_, first, count);
        if (parts_[5].defined()) AddTokens(parts_[5], first, count, At(first, H_ + G_), Token());
      }
    });
    return dx_;
  }

 private:
  float* At(int64_t token, int64_t head) const {
    return dx_.mutable_data_ptr<float>() + token * Token() + head * dx_.size(3);
  }
  int64_t Token() const { return dx_.size(2) * dx_.size(3); }

  // Heads `head` .. of some tokens: `rotated`, rotated back, and `plain`.
  void Fill(const Tensor& rotated, const Tensor& plain, int64_t head, int64_t heads, int64_t first, int64_t count) {
    const int64_t D = dx_.size(3);
    if (rotated.defined()) {
      RotateTokens(rotated, {.table = table_, .inverse = true, .heads = heads}, first, count, At(first, head), Token());
    } else {
      for (int64_t i = 0; i < count; ++i) std::fill_n(At(first + i, head), heads * D, 0.0f);
    }
    if (plain.defined()) AddTokens(plain, first, count, At(first, head), Token());
  }

  const int64_t H_, G_;
  const RopeTable& table_;
  std::array<Tensor, 6> parts_;
  Tensor dx_;
};

class FusedSplit : public torch::autograd::Function<FusedSplit> {
 public:
  static variable_list forward(AutogradContext* ctx, const Tensor& x, int64_t query_heads, const RopeTable& table) {
    ctx->save_for_backward({table.cos, table.sin, x});
    ctx->saved_data["pairing"] = static_cast<int64_t>(table.pairing);
    ctx->saved_data["query_heads"] = query_heads;
    ctx->set_materialize_grads(false);
    const int64_t H = query_heads, G = (x.size(2) - H) / 2;
    // Tensors over the memory of x that autograd does not take for views of it: their gradients are this op's.
    const at::AutoDispatchBelowADInplaceOrView no_views;
    const Tensor q = x.narrow(2, 0, H), k = x.narrow(2, H, G);
    return {Rotated(q, table, false), Rotated(k, table, false), x.narrow(2, H + G, G), q, k, x.narrow(2, H + G, G)};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    RefuseSecondDerivative();
    const variable_list saved = ctx->get_saved_variables();
    const RopeTable table = {saved[0], saved[1], static_cast<RopePairing>(ctx->saved_data["pairing"].toInt())};
    return {SplitGradient(grads, ctx->saved_data["query_heads"].toInt(), table, saved[2]).Make(), Tensor(), Tensor()};
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

SplitHeads SplitAndRotate(const Tensor& x, int64_t query_heads, const RopeTable& table, Backend backend) {
  TORCH_CHECK(x.dim() == 4 && 0 < query_heads && query_heads < x.size(2) && (x.size(2) - query_heads) % 2 == 0,
              "cannot split ", x.sizes(), " into ", query_heads, " query heads, and as many of keys as of values");
  CheckTable(table, x, x.size(3));
  if (UseFused(backend, {x, table.cos, table.sin})) {
    const variable_list parts = FusedSplit::apply(WithContiguousRows(x), query_heads, ContiguousTable(table));
    return {.q = parts[0], .k = parts[1], .v = parts[2], .plain_q = parts[3], .plain_k = parts[4], .plain_v = parts[5]};
  }
  const int64_t H = query_heads, G = (x.size(2) - H) / 2;
  const Tensor q = x.narrow(2, 0, H), k = x.narrow(2, H, G), v = x.narrow(2, H + G, G);
  return {.q = CompositeRope(q, table, false),
          .k = CompositeRope(k, table, false),
          .v = v,
          .plain_q = q,
          .plain_k = k,
          .plain_v = v};
}

}  // namespace tensorcache::train
