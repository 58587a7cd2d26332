// The decode step of memory_scan: a strip of columns at a time, so that A passes through the core once.
//
// The delta rule must know k A before it can write: it looks at its strip twice, the second time in L1, unless the caller
// gives k A.
//
// With a scale s per head (A = s S, S stored) a decay changes s alone: S' = S + (b / s') k^T u with s' = exp(g) s. That
// saves one of three multiplications an element, which is what the step waits for while A is in the cache.

#include <algorithm>

#include "core/check.h"
#include "kernels/memory_scan/memory_scan.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/memory_scan/memory_step.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/simd/exp-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tensorcache {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// Query heads that read in one pass; more take further passes over the strip.
constexpr int64_t kStepHeads = 4;

// One (batch, head).
struct StepItem {
  int64_t Dk, Dv;
  WriteRule rule;
  float old_scale;  // A = old_scale * state, before
  float decay;      // state' = decay * state + strength * ...
  float strength;
  float new_scale;  // A = new_scale * state', after
  const float* k;   // null: nothing is written
  const float* v;
  const float* predicted;  // delta: k A, or null; kOuter writes v - predicted
  float* state;
  int64_t row;      // stride of the state's rows
  int64_t to_next;  // from this state to the next item's, 0 for the last
};

// Queries of R heads, and where their reads go; strides in floats.
struct StepReads {
  const float* q;
  int64_t q_head;
  float* out;
  int64_t out_head;
};

enum class StepWrite { kNone, kOuter, kDelta, kWedge };

// Columns [j, j + NV vectors) of the state: write, and read with R queries. kDecay: whether item.decay is not 1. Tag is a
// full vector, or one lane for the columns that are left over.
template <StepWrite kWrite, bool kDecay, int R, int NV, class Tag>
HWY_INLINE void Strip(const StepItem& item, const StepReads& reads, int64_t j, Tag d) {
  using V = hn::Vec<Tag>;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const V decay = hn::Set(d, item.decay);
  const V strength = hn::Set(d, item.strength);
  // Copies, since stores to the state might otherwise alias the struct and have it reloaded each time.
  const int64_t Dk = item.Dk, row = item.row, q_head = reads.q_head;
  [[maybe_unused]] const int64_t to_next = item.to_next;
  const float* HWY_RESTRICT k = item.k;
  const float* HWY_RESTRICT v = item.v;
  const float* HWY_RESTRICT q = reads.q;
  V acc[R > 0 ? R : 1][NV];
  for (int r = 0; r < R; ++r) {
    for (int n = 0; n < NV; ++n) acc[r][n] = hn::Zero(d);
  }
  V u[NV], k_row[NV], value[NV];
  if constexpr (kWrite != StepWrite::kNone) {
    for (int n = 0; n < NV; ++n) u[n] = hn::LoadU(d, v + j + n * lanes);
  }
  if (kWrite == StepWrite::kOuter && item.predicted != nullptr) {
    for (int n = 0; n < NV; ++n) u[n] = hn::Sub(u[n], hn::LoadU(d, item.predicted + j + n * lanes));
  }
  if constexpr (kWrite == StepWrite::kWedge) {
    for (int n = 0; n < NV; ++n) k_row[n] = hn::Mul(strength, hn::LoadU(d, k + j + n * lanes));
  }
  float* HWY_RESTRICT a = item.state + j;
  if constexpr (kWrite == StepWrite::kDelta) {
    V predicted[NV];
    for (int n = 0; n < NV; ++n) predicted[n] = hn::Zero(d);
    for (int64_t i = 0; i < Dk; ++i, a += row) {
      const V ki = hn::Set(d, k[i]);
      for (int n = 0; n < NV; ++n) predicted[n] = hn::MulAdd(ki, hn::LoadU(d, a + n * lanes), predicted[n]);
    }
    const V old_scale = hn::Set(d, item.old_scale);
    for (int n = 0; n < NV; ++n) u[n] = hn::NegMulAdd(old_scale, predicted[n], u[n]);
    a = item.state + j;
  }
  if constexpr (kWrite == StepWrite::kOuter || kWrite == StepWrite::kDelta) {
    for (int n = 0; n < NV; ++n) u[n] = hn::Mul(u[n], strength);
  }
  for (int64_t i = 0; i < Dk; ++i, a += row) {
    for (int n = 0; n < NV; ++n) value[n] = hn::LoadU(d, a + n * lanes);
    if constexpr (kWrite != StepWrite::kNone) {
      const V ki = hn::Set(d, kWrite == StepWrite::kWedge ? item.strength * k[i] : k[i]);
      for (int n = 0; n < NV; ++n) {
        V update = hn::Mul(ki, u[n]);
        // Both products are rounded before they are subtracted: entry (i, j) is exactly minus entry (j, i).
        if constexpr (kWrite == StepWrite::kWedge) update = hn::Sub(update, hn::Mul(hn::Set(d, v[i]), k_row[n]));
        // Not fused without decay: multiply and add run beside each other where two fused operations would queue
        // (a quarter faster on Zen 4).
        value[n] = kDecay ? hn::MulAdd(decay, value[n], update) : hn::Add(value[n], update);
        hn::StoreU(value[n], d, a + n * lanes);
      }
    }
    if constexpr (kWrite == StepWrite::kDelta) {
      // This pass is in L1 and leaves the memory idle: fetch what the next item reads.
      for (int n = 0; n < NV; ++n) __builtin_prefetch(a + to_next + n * lanes, 0, 2);
    }
    for (int r = 0; r < R; ++r) {
      const V qi = hn::Set(d, q[r * q_head + i]);
      for (int n = 0; n < NV; ++n) acc[r][n] = hn::MulAdd(qi, value[n], acc[r][n]);
    }
  }
  const V new_scale = hn::Set(d, item.new_scale);
  for (int r = 0; r < R; ++r) {
    for (int n = 0; n < NV; ++n) {
      hn::StoreU(hn::Mul(new_scale, acc[r][n]), d, reads.out + r * reads.out_head + j + n * lanes);
    }
  }
}

template <StepWrite kWrite, bool kDecay, int R>
void AllStrips(const StepItem& item, const StepReads& reads) {
  const hn::ScalableTag<float> d;
  const hn::CappedTag<float, 1> one;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  constexpr int kVectors = 4;
  int64_t j = 0;
#if HWY_TARGET == HWY_AVX3
  // With 32 registers one head can take rows of 128 floats whole: longer runs of memory.
  if constexpr (R <= 1 && kWrite != StepWrite::kWedge) {
    for (; j + 2 * kVectors * lanes <= item.Dv; j += 2 * kVectors * lanes) {
      Strip<kWrite, kDecay, R, 2 * kVectors>(item, reads, j, d);
    }
  }
#endif
  for (; j + kVectors * lanes <= item.Dv; j += kVectors * lanes) Strip<kWrite, kDecay, R, kVectors>(item, reads, j, d);
  for (; j + lanes <= item.Dv; j += lanes) Strip<kWrite, kDecay, R, 1>(item, reads, j, d);
  for (; j < item.Dv; ++j) Strip<kWrite, kDecay, R, 1>(item, reads, j, one);
}

template <StepWrite kWrite, bool kDecay>
void ReadGroup(const StepItem& item, const StepReads& reads, int64_t heads) {
  switch (heads) {
    case 0: AllStrips<kWrite, kDecay, 0>(item, reads); break;
    case 1: AllStrips<kWrite, kDecay, 1>(item, reads); break;
    case 2: AllStrips<kWrite, kDecay, 2>(item, reads); break;
    case 3: AllStrips<kWrite, kDecay, 3>(item, reads); break;
    default: AllStrips<kWrite, kDecay, 4>(item, reads); break;
  }
}

template <StepWrite kWrite>
void WriteGroup(const StepItem& item, const StepReads& reads, int64_t heads) {
  if (item.decay == 1.0f) {
    ReadGroup<kWrite, false>(item, reads, heads);
  } else {
    ReadGroup<kWrite, true>(item, reads, heads);
  }
}

void StepOne(const StepItem& item, StepReads reads, int64_t heads) {
  bool write = item.k != nullptr;
  do {
    const int64_t group = std::min(heads, kStepHeads);
    if (!write) {
      ReadGroup<StepWrite::kNone, false>(item, reads, group);
    } else if (item.rule == WriteRule::kOuter || item.predicted != nullptr) {
      WriteGroup<StepWrite::kOuter>(item, reads, group);
    } else if (item.rule == WriteRule::kWedge) {
      WriteGroup<StepWrite::kWedge>(item, reads, group);
    } else {
      WriteGroup<StepWrite::kDelta>(item, reads, group);
    }
    write = false;
    heads -= group;
    reads.q += group * reads.q_head;
    reads.out += group * reads.out_head;
  } while (heads > 0);
}

// Decides where the decay goes: into the scale, or, without one or when it has become small, into the state.
void SetScales(float decay, float strength, float* scale, StepItem* item) {
  constexpr float kSmallestScale = 0x1p-30f;
  item->old_scale = scale == nullptr ? 1.0f : *scale;
  const float new_scale = item->old_scale * decay;
  const bool keep = scale != nullptr && new_scale >= kSmallestScale;
  item->decay = keep ? 1.0f : new_scale;
  item->new_scale = keep ? new_scale : 1.0f;
  item->strength = strength / item->new_scale;
  if (scale != nullptr) *scale = item->new_scale;
}

void StepItems(const MemoryStepArgs& args, int64_t begin, int64_t end) {
  const int64_t R = args.H / args.G;
  for (int64_t at = begin; at < end; ++at) {
    const int64_t b = at / args.G, g = at % args.G;
    float* scale = args.scale ? args.scale.At(b, g, 0) : nullptr;
    StepItem item{};
    item.Dk = args.Dk;
    item.Dv = args.Dv;
    item.rule = args.rule;
    item.state = args.state.At(b, g, 0);
    item.row = args.state.token;
    if (at + 1 < end) item.to_next = args.state.At((at + 1) / args.G, (at + 1) % args.G, 0) - item.state;
    if (args.evicted.k) {
      item.k = args.evicted.k.At(b, g, 0);
      item.v = args.evicted.v.At(b, g, 0);
      if (args.rule == WriteRule::kDelta && args.predicted) item.predicted = args.predicted.At(b, g, 0);
      const hn::CappedTag<float, 1> one;
      const float decay = hn::GetLane(ExpNonPositive(one, hn::Set(one, *args.evicted.log_decay.At(b, g, 0))));
      SetScales(decay, *args.evicted.write_strength.At(b, g, 0), scale, &item);
    } else {
      item.new_scale = scale == nullptr ? 1.0f : *scale;
    }
    StepReads reads{};
    if (args.q) {
      reads = {.q = args.q.At(b, g * R, 0),
               .q_head = args.q.head,
               .out = args.reads.At(b, g * R, 0),
               .out_head = args.reads.head};
    }
    StepOne(item, reads, args.q ? R : 0);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace tensorcache
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tensorcache {

HWY_EXPORT(StepItems);

void MemoryStep(const MemoryStepArgs& args, int64_t begin, int64_t end) {
  TC_CHECK(ValidateMemoryStep(args).ok());
  TC_CHECK(0 <= begin && end <= args.B * args.G);
  TC_CHECK(args.state);
  HWY_DYNAMIC_DISPATCH(StepItems)(args, begin, end);
}

void FoldMemoryScale(const MemoryStepArgs& args, int64_t begin, int64_t end) {
  TC_CHECK(0 <= begin && end <= args.B * args.G);
  if (!args.scale) return;
  for (int64_t at = begin; at < end; ++at) {
    const int64_t b = at / args.G, g = at % args.G;
    float* scale = args.scale.At(b, g, 0);
    for (int64_t i = 0; i < args.Dk; ++i) {
      float* row = args.state.At(b, g, i);
      for (int64_t j = 0; j < args.Dv; ++j) row[j] *= *scale;
    }
    *scale = 1;
  }
}

}  // namespace tensorcache
#endif  // HWY_ONCE
