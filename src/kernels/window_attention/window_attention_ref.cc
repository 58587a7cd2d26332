// The specification of window attention, in plain loops and double precision.
#include "kernels/window_attention/window_attention_ref.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <type_traits>
#include <vector>

namespace tensorcache {
namespace {

// The gradient of one key/value pair: sums in double until the item is done.
struct PairGrad {
  std::vector<double> k, v;
};

// A key that a query sees.
template <class Real>
struct Visible {
  const Real* k;
  const Real* v;
  bool sink;
  int64_t index;  // sinks: s; others: 0 .. P-1 past, P .. P+T-1 block
};

template <class Real>
std::vector<Visible<Real>> VisibleKeys(const WindowAttentionArgs<Real>& args, int64_t b, int64_t g, int64_t token) {
  const WindowAttentionShape& n = args.shape;
  const int64_t t = n.position + token;
  std::vector<Visible<Real>> keys;
  for (int64_t s = 0; s < n.S; ++s) {
    if (s <= t - n.W) keys.push_back({args.sink_k.At(b, g, s), args.sink_v.At(b, g, s), true, s});
  }
  for (int64_t j = 0; j < n.P + n.T; ++j) {
    const int64_t i = n.position - n.P + j;
    if (!(t - n.W < i && i <= t)) continue;
    if (j < n.P) {
      const int64_t slot = (args.past.start + j) % args.past.capacity;
      keys.push_back({args.past.k.At(b, g, slot), args.past.v.At(b, g, slot), false, j});
    } else {
      keys.push_back({args.k.At(b, g, j - n.P), args.v.At(b, g, j - n.P), false, j});
    }
  }
  return keys;
}

template <class X, class Y>
double Dot(const X* x, const Y* y, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(y[i]);
  return sum;
}

double Scale(const std::optional<double>& scale, int64_t D) {
  return scale.value_or(1 / std::sqrt(static_cast<double>(D)));
}

Status CheckItems(const WindowAttentionShape& shape, int64_t begin, int64_t end) {
  if (begin < 0 || end < begin || end > shape.B * shape.G) {
    return InvalidArgument("window_attention: item range outside 0 .. B * G");
  }
  return OkStatus();
}

// One query: head h, block token `token`.
template <class Real>
void ForwardQuery(const WindowAttentionArgs<Real>& args, int64_t b, int64_t h, int64_t token) {
  const WindowAttentionShape& n = args.shape;
  const double scale = Scale(args.scale, n.D);
  const auto keys = VisibleKeys(args, b, h / (n.H / n.G), token);
  const Real* q = args.q.At(b, h, token);
  const Real* q_sink = args.q_sink ? args.q_sink.At(b, h, token) : q;

  std::vector<double> weight;
  for (const auto& key : keys) weight.push_back(scale * Dot(key.sink ? q_sink : q, key.k, n.D));
  const double max = *std::max_element(weight.begin(), weight.end());
  double sum = 0;
  for (double& w : weight) sum += w = std::exp(w - max);

  Real* out = args.out.At(b, h, token);
  for (int64_t d = 0; d < n.Dv; ++d) {
    double value = 0;
    for (size_t i = 0; i < keys.size(); ++i) value += weight[i] / sum * static_cast<double>(keys[i].v[d]);
    out[d] = static_cast<Real>(value);
  }
  if (args.lse) *args.lse.At(b, h, token) = static_cast<Real>(max + std::log(sum));
}

// p_i = exp(logit_i - lse), dp_i = dout . v_i, ds_i = p_i (dp_i - dout . out):
//   dv_i += p_i dout, dk_i += scale ds_i q, dq = scale sum_i ds_i k_i
template <class Real>
void BackwardQuery(const WindowAttentionArgs<Real>& args, const WindowAttentionGrads<Real>& grads, int64_t b, int64_t h,
                   int64_t token, std::vector<PairGrad>& pairs, std::vector<PairGrad>& sinks) {
  const WindowAttentionShape& n = args.shape;
  const double scale = Scale(args.scale, n.D);
  const Real* dout = grads.dout.At(b, h, token);
  const double delta = Dot(dout, grads.out.At(b, h, token), n.Dv);
  const double lse = static_cast<double>(*grads.lse.At(b, h, token));
  std::vector<double> dq(static_cast<size_t>(n.D)), dq_sink(dq);

  for (const auto& key : VisibleKeys(args, b, h / (n.H / n.G), token)) {
    const bool own_query = key.sink && args.q_sink;
    const Real* q = (own_query ? args.q_sink : args.q).At(b, h, token);
    std::vector<double>& dq_of_key = own_query ? dq_sink : dq;
    PairGrad& pair = (key.sink ? sinks : pairs)[static_cast<size_t>(key.index)];

    const double p = std::exp(scale * Dot(q, key.k, n.D) - lse);
    const double ds = p * (Dot(dout, key.v, n.Dv) - delta);
    for (int64_t d = 0; d < n.Dv; ++d) pair.v[static_cast<size_t>(d)] += p * static_cast<double>(dout[d]);
    for (int64_t d = 0; d < n.D; ++d) {
      pair.k[static_cast<size_t>(d)] += scale * ds * static_cast<double>(q[d]);
      dq_of_key[static_cast<size_t>(d)] += scale * ds * static_cast<double>(key.k[d]);
    }
  }
  for (int64_t d = 0; d < n.D; ++d) {
    grads.dq.At(b, h, token)[d] = static_cast<Real>(dq[static_cast<size_t>(d)]);
    if (grads.dq_sink) grads.dq_sink.At(b, h, token)[d] = static_cast<Real>(dq_sink[static_cast<size_t>(d)]);
  }
}

template <class Real>
void Store(const std::vector<double>& from, Real* to) {
  for (size_t i = 0; i < from.size(); ++i) to[i] = static_cast<Real>(from[i]);
}

template <class Real>
void BackwardItem(const WindowAttentionArgs<Real>& args, const WindowAttentionGrads<Real>& grads, int64_t b,
                  int64_t g) {
  const WindowAttentionShape& n = args.shape;
  const PairGrad zero{std::vector<double>(static_cast<size_t>(n.D)), std::vector<double>(static_cast<size_t>(n.Dv))};
  std::vector<PairGrad> pairs(static_cast<size_t>(n.P + n.T), zero), sinks(static_cast<size_t>(n.S), zero);
  const int64_t group = n.H / n.G;
  for (int64_t h = g * group; h < (g + 1) * group; ++h) {
    for (int64_t token = 0; token < n.T; ++token) BackwardQuery(args, grads, b, h, token, pairs, sinks);
  }
  for (int64_t j = 0; j < n.P; ++j) {
    if (grads.dpast_k) Store(pairs[static_cast<size_t>(j)].k, grads.dpast_k.At(b, g, j));
    if (grads.dpast_v) Store(pairs[static_cast<size_t>(j)].v, grads.dpast_v.At(b, g, j));
  }
  for (int64_t j = 0; j < n.T; ++j) {
    Store(pairs[static_cast<size_t>(n.P + j)].k, grads.dk.At(b, g, j));
    Store(pairs[static_cast<size_t>(n.P + j)].v, grads.dv.At(b, g, j));
  }
  for (int64_t s = 0; s < n.S; ++s) {
    if (grads.dsink_k) Store(sinks[static_cast<size_t>(s)].k, grads.dsink_k.At(b, g, s));
    if (grads.dsink_v) Store(sinks[static_cast<size_t>(s)].v, grads.dsink_v.At(b, g, s));
  }
}

float Widened(uint16_t bf16) { return std::bit_cast<float>(static_cast<uint32_t>(bf16) << 16); }

// A bf16 ring widened, slot by slot, to (B, G, capacity, width). Slots without a token are not read and stay 0.
struct WidenedRing {
  explicit WidenedRing(const WindowAttentionStepArgs<float, uint16_t>& args)
      : k(Widen(args, args.ring.k, args.shape.D)), v(Widen(args, args.ring.v, args.shape.Dv)) {}

  static std::vector<float> Widen(const WindowAttentionStepArgs<float, uint16_t>& args,
                                  const Rows<const uint16_t>& rows, int64_t width) {
    const WindowAttentionShape& n = args.shape;
    const int64_t capacity = args.ring.capacity;
    std::vector<float> copy(static_cast<size_t>(n.B * n.G * capacity * width));
    for (int64_t item = 0; item < n.B * n.G; ++item) {
      for (int64_t i = 0; i <= n.P; ++i) {
        const int64_t slot = (args.ring.start + i) % capacity;
        const uint16_t* row = rows.At(item / n.G, item % n.G, slot);
        std::transform(row, row + width, copy.begin() + (item * capacity + slot) * width, Widened);
      }
    }
    return copy;
  }

  WindowAttentionStepArgs<float> Args(const WindowAttentionStepArgs<float, uint16_t>& args) const {
    const WindowAttentionShape& n = args.shape;
    const auto rows = [&](const std::vector<float>& copy, int64_t width) {
      const int64_t head = args.ring.capacity * width;
      return Rows<const float>{.data = copy.data(), .batch = n.G * head, .head = head, .token = width};
    };
    return {.shape = n,
            .q = args.q,
            .ring = {rows(k, n.D), rows(v, n.Dv), args.ring.capacity, args.ring.start},
            .sink_k = args.sink_k,
            .sink_v = args.sink_v,
            .q_sink = args.q_sink,
            .scale = args.scale,
            .out = args.out,
            .lse = args.lse};
  }

  std::vector<float> k, v;
};

}  // namespace

template <class Real>
Status WindowAttentionForwardReference(const WindowAttentionArgs<Real>& args, int64_t begin_item, int64_t end_item) {
  const WindowAttentionShape& n = args.shape;
  TC_RETURN_IF_ERROR(CheckItems(n, begin_item, end_item));
  const int64_t group = n.H / n.G;
  for (int64_t item = begin_item; item < end_item; ++item) {
    const int64_t b = item / n.G, g = item % n.G;
    for (int64_t h = g * group; h < (g + 1) * group; ++h) {
      for (int64_t token = 0; token < n.T; ++token) ForwardQuery(args, b, h, token);
    }
  }
  return OkStatus();
}

template <class Real>
Status WindowAttentionBackwardReference(const WindowAttentionArgs<Real>& args, const WindowAttentionGrads<Real>& grads,
                                        int64_t begin_item, int64_t end_item) {
  TC_RETURN_IF_ERROR(CheckItems(args.shape, begin_item, end_item));
  for (int64_t item = begin_item; item < end_item; ++item) {
    BackwardItem(args, grads, item / args.shape.G, item % args.shape.G);
  }
  return OkStatus();
}

// The block of one token whose key and value are the newest row of the ring.
template <class Real, class Stored>
Status WindowAttentionStepReference(const WindowAttentionStepArgs<Real, Stored>& args, int64_t begin_item,
                                    int64_t end_item) {
  if constexpr (!std::is_same_v<Real, Stored>) {
    const WidenedRing widened(args);
    return WindowAttentionStepReference(widened.Args(args), begin_item, end_item);
  } else {
    const int64_t newest = (args.ring.start + args.shape.P) % args.ring.capacity;
    Rows<const Real> k = args.ring.k, v = args.ring.v;
    k.data = k.At(0, 0, newest);
    v.data = v.At(0, 0, newest);
    return WindowAttentionForwardReference(WindowAttentionArgs<Real>{.shape = args.shape,
                                                                     .q = args.q,
                                                                     .k = k,
                                                                     .v = v,
                                                                     .past = args.ring,
                                                                     .sink_k = args.sink_k,
                                                                     .sink_v = args.sink_v,
                                                                     .q_sink = args.q_sink,
                                                                     .scale = args.scale,
                                                                     .out = args.out,
                                                                     .lse = args.lse},
                                           begin_item, end_item);
  }
}

template Status WindowAttentionForwardReference(const WindowAttentionArgs<float>&, int64_t, int64_t);
template Status WindowAttentionForwardReference(const WindowAttentionArgs<double>&, int64_t, int64_t);
template Status WindowAttentionBackwardReference(const WindowAttentionArgs<float>&, const WindowAttentionGrads<float>&,
                                                 int64_t, int64_t);
template Status WindowAttentionBackwardReference(const WindowAttentionArgs<double>&,
                                                 const WindowAttentionGrads<double>&, int64_t, int64_t);
template Status WindowAttentionStepReference(const WindowAttentionStepArgs<float>&, int64_t, int64_t);
template Status WindowAttentionStepReference(const WindowAttentionStepArgs<double>&, int64_t, int64_t);
template Status WindowAttentionStepReference(const WindowAttentionStepArgs<float, uint16_t>&, int64_t, int64_t);

}  // namespace tensorcache
