// The chunked form of the memory: everything inside a chunk as matrix products over all chunks at once, and a loop over
// chunks only for the state. kernels/memory_scan/README.md derives it.

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "train/ops/memory_scan.h"

namespace tensorcache::train {
namespace {

constexpr double kNever = -std::numeric_limits<double>::infinity();
constexpr int64_t kExactChunk = 64;

// (..., n, D) -> (..., ceil(n / C), C, D), zeros behind the last row.
Tensor Chunked(const Tensor& x, int64_t C) {
  const int64_t n = x.size(-2), chunks = (n + C - 1) / C;
  const Tensor padded = chunks * C == n ? x : at::constant_pad_nd(x, {0, 0, 0, chunks * C - n});
  return padded.unflatten(-2, {chunks, C});
}

// The writes of N chunks of C. Padding rows are zero: no decay, nothing written.
struct Writes {
  Tensor k;       // (B, G, N, C, Dk)
  Tensor v;       // (B, G, N, C, Dv)
  Tensor prefix;  // (B, G, N, C, 1): P_p = g_0 + ... + g_p, of the chunk's log-decays
  Tensor before;  // the same: P_{p-1}
  Tensor b;       // (B, G, N, C, 1): write strength
};

// Ring and block joined, (B, G, tokens, D), in the dtype of the computation.
Tensor Joined(const Tensor& past, const Tensor& block, at::ScalarType dtype) {
  const Tensor rows = block.transpose(1, 2).to(dtype);
  return past.defined() ? at::cat({past.to(dtype), rows}, 2) : rows;
}

// (G) or (B, T, G) -> (B, G, tokens, 1)
Tensor JoinedScalars(const Tensor& past, const Tensor& block, at::IntArrayRef keys, at::ScalarType dtype) {
  if (block.dim() == 1) return block.to(dtype).view({1, -1, 1, 1}).expand({keys[0], keys[1], keys[2], 1});
  return Joined(past, block, dtype).unsqueeze(3);
}

// (B, G, N, C, D) -> (B, G, N, 1, D), not counting the padding behind token n.
Tensor ChunkMeans(const Tensor& x, int64_t n) {
  const int64_t C = x.size(3);
  const Tensor first = at::arange(0, x.size(2) * C, C, x.options());
  const Tensor count = at::clamp_max(n - first, C);
  return x.sum({3}, /*keepdim=*/true) / count.view({-1, 1, 1});
}

Writes ChunkedWrites(const MemoryScanInputs& in, int64_t written, int64_t C, at::ScalarType dtype) {
  const Tensor k = Joined(in.past_k, in.k, dtype), v = Joined(in.past_v, in.v, dtype);
  const Tensor g = JoinedScalars(in.past_log_decay, in.log_decay, k.sizes(), dtype);
  const Tensor b = JoinedScalars(in.past_write_strength, in.write_strength, k.sizes(), dtype);
  const auto chunked = [&](const Tensor& x) {
    const Tensor chunks = Chunked(x.narrow(2, 0, written), C);
    return in.mode == ScanMode::kChunkMean ? ChunkMeans(chunks, written) : chunks;
  };
  const Tensor log_decay = chunked(g), prefix = log_decay.cumsum(3);
  const int64_t rows = prefix.size(3);
  return {.k = chunked(k),
          .v = chunked(v),
          .prefix = prefix,
          .before = at::constant_pad_nd(prefix.narrow(3, 0, rows - 1), {0, 0, 1, 0}),
          .b = chunked(b)};
}

// exp(of_p - prefix_j) for j <= p, or j < p if `strict`, else 0: (B, G, N, C, C). Masked before exp, so that no
// exponent is positive.
Tensor DecayMask(const Tensor& of, const Tensor& prefix, bool strict) {
  const int64_t C = prefix.size(3);
  const Tensor hidden = at::ones({C, C}, of.options().dtype(at::kBool)).triu(strict ? 0 : 1);
  return (of - prefix.transpose(3, 4)).masked_fill(hidden, kNever).exp();
}

// The residuals of delta rules are u = fixed - by_state A, with A the state at the start of the chunk. In exact mode
// (I + L) u = v - exp(E_p) k A, L_pj = exp(E_p - P_j) b_j k_p . k_j for j < p, with E_p = P_{p-1} for delta and P_p for
// gated_delta.
std::pair<Tensor, Tensor> DeltaResiduals(const Writes& w, WriteRule rule, bool exact) {
  if (!exact) return {w.v, w.k};
  const Tensor& exponent = rule == WriteRule::kGatedDelta ? w.prefix : w.before;
  const Tensor lower = at::matmul(w.k, (w.b * w.k).transpose(3, 4)) * DecayMask(exponent, w.prefix, /*strict=*/true);
  const Tensor right = at::cat({w.v, exponent.exp() * w.k}, 4);
  const Tensor solved =
      at::linalg_solve_triangular(lower, right, /*upper=*/false, /*left=*/true, /*unitriangular=*/true);
  return {solved.narrow(4, 0, w.v.size(4)), solved.narrow(4, w.v.size(4), w.k.size(4))};
}

struct States {
  Tensor starts;  // (B, G, N, Dk, Dv): A at the start of each chunk
  Tensor values;  // (B, G, N, C, Dv): b u
  Tensor last;    // (B, G, Dk, Dv)
};

// The only sequential part: A' = exp(P_{n-1}) A + sum_j exp(P_{n-1} - P_j) b_j k_j^T u_j.
States Scan(const Writes& w, WriteRule rule, bool exact, const Tensor& initial) {
  const Tensor end = w.prefix.narrow(3, w.prefix.size(3) - 1, 1);       // (B, G, N, 1, 1)
  const Tensor key_t = ((end - w.prefix).exp() * w.k).transpose(3, 4);  // (B, G, N, Dk, C)
  const Tensor decay = end.exp();
  Tensor values = w.b * w.v, by_state, written;
  if (IsDelta(rule)) {
    const auto [fixed, factor] = DeltaResiduals(w, rule, exact);
    values = w.b * fixed;
    by_state = w.b * factor;
  } else {
    written = at::matmul(key_t, values);
    if (rule == WriteRule::kWedge) written = written - written.transpose(3, 4);
  }
  std::vector<Tensor> starts, all_values;
  Tensor A = initial;
  for (int64_t c = 0; c < w.k.size(2); ++c) {
    starts.push_back(A);
    if (IsDelta(rule)) {
      all_values.push_back(values.select(2, c) - at::matmul(by_state.select(2, c), A));
      A = decay.select(2, c) * A + at::matmul(key_t.select(2, c), all_values.back());
    } else {
      A = decay.select(2, c) * A + written.select(2, c);
    }
  }
  if (IsDelta(rule)) values = at::stack(all_values, 2);
  return {.starts = at::stack(starts, 2), .values = values, .last = A};
}

// q (B, G, R, tokens, Dk), which pair with the writes one to one -> (B, G, R, tokens, Dv).
Tensor ReadChunks(const Tensor& q, int64_t C, const Writes& w, const States& states, const MemoryScanInputs& in) {
  const int64_t R = q.size(2), tokens = q.size(3);
  const Tensor chunks = Chunked(q, C).transpose(2, 3);  // (B, G, N, R, C, Dk)
  const Tensor flat = chunks.flatten(3, 4);             // (B, G, N, R * C, Dk)
  const auto by_head = [&](const Tensor& x) { return x.unflatten(3, {R, C}); };
  Tensor reads = by_head(at::matmul(flat, states.starts));
  if (in.mode == ScanMode::kExact) {
    const Tensor mask = DecayMask(w.prefix, w.prefix, /*strict=*/false).unsqueeze(3);  // (B, G, N, 1, C, C)
    const auto masked = [&](const Tensor& keys, const Tensor& values) {
      const Tensor scores = by_head(at::matmul(flat, keys.transpose(3, 4))) * mask;
      return by_head(at::matmul(scores.flatten(3, 4), values));
    };
    reads = w.prefix.exp().unsqueeze(3) * reads + masked(w.k, states.values);
    if (in.rule == WriteRule::kWedge) reads = reads - masked(w.v, w.b * w.k);
  }
  return reads.transpose(2, 3).flatten(3, 4).narrow(3, 0, tokens);
}

}  // namespace

MemoryScanOutputs MemoryScanComposite(const MemoryScanInputs& in) {
  const int64_t B = in.q.size(0), T = in.q.size(1), H = in.q.size(2), Dk = in.q.size(3);
  const int64_t G = in.k.size(2), Dv = in.v.size(3), P = in.past_k.defined() ? in.past_k.size(2) : 0;
  const at::ScalarType dtype = in.q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const Tensor initial =
      in.initial.defined() ? in.initial.to(dtype) : at::zeros({B, G, Dk, Dv}, in.q.options().dtype(dtype));
  const Tensor q = in.q.to(dtype).reshape({B, T, G, H / G, Dk}).permute({0, 2, 3, 1, 4});  // (B, G, R, T, Dk)
  const bool exact = in.mode == ScanMode::kExact;
  // The first queries come before any write: the ring is still filling.
  const int64_t leading = exact ? std::min(T, in.lag - P) : 0, written = T - leading;

  std::vector<Tensor> reads;
  if (leading > 0) {
    reads.push_back(at::matmul(q.narrow(3, 0, leading).flatten(2, 3), initial).unflatten(2, {H / G, leading}));
  }
  Tensor final_state;
  if (written > 0) {
    const int64_t C = std::min(exact ? kExactChunk : in.chunk, written);
    const Writes writes = ChunkedWrites(in, written, C, dtype);
    const States states = Scan(writes, in.rule, exact, initial);
    reads.push_back(ReadChunks(q.narrow(3, leading, written), C, writes, states, in));
    final_state = states.last;
  } else {
    final_state = initial.clone();
  }
  if (reads.empty()) return {.reads = at::empty({B, 0, H, Dv}, in.q.options()), .final_state = final_state};
  return {
      .reads = at::cat(reads, 3).permute({0, 3, 1, 2, 4}).reshape({B, T, H, Dv}).to(in.q.scalar_type()).contiguous(),
      .final_state = final_state};
}

}  // namespace tensorcache::train
