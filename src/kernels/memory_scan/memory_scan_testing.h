// Random problems for the tests and the bench of memory_scan.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "core/rng.h"
#include "tensorcache/kernels/memory_scan.h"
#include "testing/guarded_buffer.h"

namespace tensorcache::testing {

inline std::vector<WriteRule> AllWriteRules() {
  std::vector<WriteRule> rules;
  for (const auto& [rule, name] : EnumNames(WriteRule())) rules.push_back(rule);
  return rules;
}

inline std::string RuleName(WriteRule rule) {
  for (const auto& [value, name] : EnumNames(rule)) {
    if (value == rule) return std::string(name);
  }
  return "?";
}

// Chunk modes are the paper's, which has no gated_delta.
inline bool HasChunkModes(WriteRule rule) { return rule != WriteRule::kGatedDelta; }

struct ScanOptions {
  bool constant_per_head = false;  // log-decay and write strength
  bool zero_initial = false;
  double min_decay = 0.9, max_decay = 1.0;
  double min_strength = 0.05, max_strength = 0.9;
  double key_norm = 1.0;
  int64_t pad = 0;
};

// Inputs (and output gradients) of one problem.
template <class Real>
struct ScanProblem {
  MemoryScanShape shape;
  bool constant_per_head = false, zero_initial = false;
  int64_t past_start = 0, past_capacity = 1;
  RowBufferOf<Real> q, k, v, g, b, past_k, past_v, past_g, past_b, initial, d_reads, d_final;

  static Rows<const Real> Scalars(const RowBufferOf<Real>& array, bool constant) {
    Rows<const Real> rows = array.crows();
    if (constant) rows.token = 0;
    return rows;
  }
  MemoryWrites<const Real> Writes() const {
    return {.k = k.crows(),
            .v = v.crows(),
            .log_decay = Scalars(g, constant_per_head),
            .write_strength = Scalars(b, constant_per_head)};
  }
  MemoryPast<const Real> Past() const {
    MemoryPast<const Real> past;
    past.k = past_k.crows();
    past.v = past_v.crows();
    // The constants of a head are the same for ring and block.
    past.log_decay = constant_per_head ? Scalars(g, true) : past_g.crows();
    past.write_strength = constant_per_head ? Scalars(b, true) : past_b.crows();
    past.capacity = past_capacity;
    past.start = past_start;
    return past;
  }
  Rows<const Real> Initial() const { return zero_initial ? Rows<const Real>{} : initial.crows(); }

  MemoryScanForwardArgs<Real> Forward() const {
    MemoryScanForwardArgs<Real> args;
    args.shape = shape;
    args.q = q.crows();
    args.writes = Writes();
    args.past = Past();
    args.initial = Initial();
    return args;
  }
  MemoryScanBackwardArgs<Real> Backward() const {
    MemoryScanBackwardArgs<Real> args;
    args.shape = shape;
    args.q = q.crows();
    args.writes = Writes();
    args.past = Past();
    args.initial = Initial();
    args.d_reads = d_reads.crows();
    args.d_final = d_final.crows();
    return args;
  }
  template <class Other>
  ScanProblem<Other> Cast() const {
    return {shape,
            constant_per_head,
            zero_initial,
            past_start,
            past_capacity,
            q.template Cast<Other>(),
            k.template Cast<Other>(),
            v.template Cast<Other>(),
            g.template Cast<Other>(),
            b.template Cast<Other>(),
            past_k.template Cast<Other>(),
            past_v.template Cast<Other>(),
            past_g.template Cast<Other>(),
            past_b.template Cast<Other>(),
            initial.template Cast<Other>(),
            d_reads.template Cast<Other>(),
            d_final.template Cast<Other>()};
  }
};

inline ScanProblem<float> RandomScanProblem(const MemoryScanShape& s, const ScanOptions& o, uint64_t seed) {
  Rng rng(seed);
  ScanProblem<float> p;
  p.shape = s;
  p.constant_per_head = o.constant_per_head;
  p.zero_initial = o.zero_initial;
  p.past_capacity = std::max<int64_t>(s.past + static_cast<int64_t>(rng.Below(3)), 1);
  p.past_start = static_cast<int64_t>(rng.Below(static_cast<uint64_t>(p.past_capacity)));
  const auto normal = [&](int64_t heads, int64_t T, int64_t D, double scale) {
    RowBufferOf<float> array(s.B, heads, T, D, o.pad);
    array.ForEach([&](float& x) { x = static_cast<float>(rng.Normal() * scale); });
    return array;
  };
  const auto uniform = [&](int64_t T, double low, double high, bool log) {
    RowBufferOf<float> array(s.B, s.G, T, 1, o.pad);
    array.ForEach([&](float& x) {
      const double value = low + (high - low) * rng.UniformDouble();
      x = static_cast<float>(log ? std::log(value) : value);
    });
    return array;
  };
  const double key_scale = o.key_norm / std::sqrt(static_cast<double>(s.Dk));
  p.q = normal(s.H, s.T, s.Dk, 1.0);
  p.k = normal(s.G, s.T, s.Dk, key_scale);
  p.v = normal(s.G, s.T, s.Dv, 1.0);
  p.g = uniform(std::max<int64_t>(s.T, 1), o.min_decay, o.max_decay, true);
  p.b = uniform(std::max<int64_t>(s.T, 1), o.min_strength, o.max_strength, false);
  p.past_k = normal(s.G, p.past_capacity, s.Dk, key_scale);
  p.past_v = normal(s.G, p.past_capacity, s.Dv, 1.0);
  p.past_g = uniform(p.past_capacity, o.min_decay, o.max_decay, true);
  p.past_b = uniform(p.past_capacity, o.min_strength, o.max_strength, false);
  p.initial = normal(s.G, s.Dk, s.Dv, 0.3);
  p.d_reads = normal(s.H, s.T, s.Dv, 1.0);
  p.d_final = normal(s.G, s.Dk, s.Dv, 0.1);
  return p;
}

template <class Real>
struct ScanGradients {
  explicit ScanGradients(const MemoryScanShape& s, int64_t pad = 0)
      : q(s.B, s.H, s.T, s.Dk, pad),
        k(s.B, s.G, s.T, s.Dk, pad),
        v(s.B, s.G, s.T, s.Dv, pad),
        g(s.B, s.G, s.T, 1, pad),
        b(s.B, s.G, s.T, 1, pad),
        past_k(s.B, s.G, s.past, s.Dk, pad),
        past_v(s.B, s.G, s.past, s.Dv, pad),
        past_g(s.B, s.G, s.past, 1, pad),
        past_b(s.B, s.G, s.past, 1, pad),
        initial(s.B, s.G, s.Dk, s.Dv, pad) {}

  void Attach(MemoryScanBackwardArgs<Real>* args) {
    args->d_q = q.rows();
    args->d_writes = {.k = k.rows(), .v = v.rows(), .log_decay = g.rows(), .write_strength = b.rows()};
    args->d_past = {
        .k = past_k.rows(), .v = past_v.rows(), .log_decay = past_g.rows(), .write_strength = past_b.rows()};
    args->d_initial = initial.rows();
  }

  RowBufferOf<Real> q, k, v, g, b, past_k, past_v, past_g, past_b, initial;
};

}  // namespace tensorcache::testing
