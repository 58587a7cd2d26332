#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "train/ops/window_attention.h"

namespace tensorcache::train {
namespace {

constexpr double kNever = -std::numeric_limits<double>::infinity();

// Queries of one softmax: enough to fill a matrix product, few enough that a short window is not lost among masked
// keys.
int64_t QueryBlock(int64_t window) { return std::clamp<int64_t>(window, 64, 512); }

// (B, T, H, D) -> (B, G, R, T, D): the R = H / G query heads of each key/value head.
Tensor Grouped(const Tensor& x, int64_t G) {
  return x.reshape({x.size(0), x.size(1), G, x.size(2) / G, x.size(3)}).permute({0, 2, 3, 1, 4});
}

// (B, heads, keys, D): the past, then the block (B, T, heads, D).
Tensor WithPast(const Tensor& past, const Tensor& block) {
  const Tensor rows = block.transpose(1, 2);
  return past.defined() ? at::cat({past, rows}, 2) : rows;
}

// q (B, G, R, n, D) . k (B, G, m, D) -> (B, G, R, n, m), with -inf where `hidden` (n, m).
Tensor Logits(const Tensor& q, const Tensor& k, double scale, const Tensor& hidden) {
  const auto n = q.sizes();
  const Tensor logits = at::matmul(q.reshape({n[0], n[1], n[2] * n[3], n[4]}) * scale, k.transpose(2, 3));
  return logits.view({n[0], n[1], n[2], n[3], k.size(2)}).masked_fill(hidden, kNever);
}

// weights (B, G, R, n, m) times v (B, G, m, Dv) -> (B, n, H, Dv)
Tensor Weigh(const Tensor& weights, const Tensor& v) {
  const auto n = weights.sizes();
  const Tensor sums = at::matmul(weights.reshape({n[0], n[1], n[2] * n[3], n[4]}), v);
  return sums.view({n[0], n[1], n[2], n[3], v.size(3)}).permute({0, 3, 1, 2, 4}).flatten(2, 3);
}

}  // namespace

Tensor WindowAttentionComposite(const WindowAttentionInputs& in) {
  const int64_t T = in.q.size(1), D = in.q.size(3), G = in.k.size(2);
  const int64_t P = in.past_k.defined() ? in.past_k.size(2) : 0;
  const int64_t window = in.window == 0 ? P + T : in.window;
  const double scale = in.scale.value_or(1 / std::sqrt(static_cast<double>(D)));
  const Tensor q = Grouped(in.q, G), q_sink = in.q_sink.defined() ? Grouped(in.q_sink, G) : q;  // (B, G, R, T, D)
  const Tensor k = WithPast(in.past_k, in.k), v = WithPast(in.past_v, in.v);                    // (B, G, P + T, .)
  // Sinks that the last query does not see are not looked at: they need not be there yet.
  int64_t sinks = 0;
  if (in.sink_k.defined() && in.window > 0) {
    sinks = std::clamp<int64_t>(in.position + T - in.window, 0, in.sink_k.size(2));
  }
  const auto index = at::TensorOptions().dtype(at::kLong).device(in.q.device());

  std::vector<Tensor> outputs;
  for (int64_t begin = 0; begin < T; begin += QueryBlock(window)) {
    const int64_t end = std::min(begin + QueryBlock(window), T), n = end - begin;
    const int64_t first = std::max<int64_t>(P + begin - window + 1, 0), m = P + end - first;  // of the keys
    const Tensor query = at::arange(P + begin, P + end, index).unsqueeze(1), key = at::arange(first, P + end, index);
    Tensor logits =
        Logits(q.narrow(3, begin, n), k.narrow(2, first, m), scale, at::logical_or(key > query, key <= query - window));
    if (sinks > 0) {
      const Tensor position = at::arange(in.position + begin, in.position + end, index).unsqueeze(1);
      const Tensor sink = at::arange(sinks, index);
      logits = at::cat(
          {logits, Logits(q_sink.narrow(3, begin, n), in.sink_k.narrow(2, 0, sinks), scale, sink > position - window)},
          4);
    }
    const Tensor weights =
        at::softmax(logits, 4, logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat).to(v.scalar_type());
    Tensor out = Weigh(weights.narrow(4, 0, m), v.narrow(2, first, m));
    if (sinks > 0) out = out + Weigh(weights.narrow(4, m, sinks), in.sink_v.narrow(2, 0, sinks));
    outputs.push_back(out);
  }
  if (outputs.empty()) return at::empty({in.q.size(0), 0, in.q.size(2), in.v.size(3)}, in.q.options());
  return at::cat(outputs, 1).contiguous();
}

}  // namespace tensorcache::train
