// The decode step of memory_scan: a strip of columns at a time, so that A passes through the core once.
//
// The delta rules must know k A before they can write: they look at their strip twice, the second time in L1.
//
// Whether A is still finite costs next to nothing: a number of A that is not finite makes the sum that reads its column
// not finite, whatever the query, since 0 * inf is NaN. So the reads of one query tell, Dv numbers for Dk x Dv. Without a
// query the columns are summed. Only where a sum is not finite, which an overflow in it may explain too, A is looked through.

#include <algorithm>

#include "core/check.h"
#include "kernels/memory_scan/memory_scan_plan.h"
#include "tensorcache/kernels/memory_scan.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/memory_scan/memory_step.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/simd/exp-inl.h"
#include "kernels/simd/row-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tensorcache {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// Query heads that read in one pass; more take further passes over the strip.
constexpr int64_t kReadHeads = 4;

// One (batch, head).
struct StepItem {
  int64_t Dk, Dv;
  WriteRule rule;
  float decay;  // state' = decay * state + strength * ...
  float strength;
  float prediction_decay;  // delta rules write v - prediction_decay * k state
  const float* k;          // null: nothing is written
  const float* v;
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
// full vector, or one lane for the columns that are left over. Returns whether the sums over the columns are finite.
template <StepWrite kWrite, bool kDecay, int R, int NV, class Tag>
HWY_INLINE bool Strip(const StepItem& item, const StepReads& reads, int64_t j, Tag d) {
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
  constexpr int kSums = R > 0 ? R : 1;
  V acc[kSums][NV];
  for (int r = 0; r < kSums; ++r) {
    for (int n = 0; n < NV; ++n) acc[r][n] = hn::Zero(d);
  }
  V u[NV], k_row[NV], value[NV];
  if constexpr (kWrite != StepWrite::kNone) {
    for (int n = 0; n < NV; ++n) u[n] = hn::LoadU(d, v + j + n * lanes);
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
    const V prediction_decay = hn::Set(d, item.prediction_decay);
    for (int n = 0; n < NV; ++n) u[n] = hn::NegMulAdd(prediction_decay, predicted[n], u[n]);
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
    if constexpr (R == 0) {
      for (int n = 0; n < NV; ++n) acc[0][n] = hn::Add(value[n], acc[0][n]);
    }
    for (int r = 0; r < R; ++r) {
      const V qi = hn::Set(d, q[r * q_head + i]);
      for (int n = 0; n < NV; ++n) acc[r][n] = hn::MulAdd(qi, value[n], acc[r][n]);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int n = 0; n < NV; ++n) hn::StoreU(acc[r][n], d, reads.out + r * reads.out_head + j + n * lanes);
  }
  V probe = hn::Zero(d);  // 0 * x is NaN exactly for infinite and NaN x
  for (int n = 0; n < NV; ++n) probe = hn::MulAdd(hn::Zero(d), acc[0][n], probe);
  return hn::AllTrue(d, hn::Eq(probe, hn::Zero(d)));
}

template <StepWrite kWrite, bool kDecay, int R>
bool AllStrips(const StepItem& item, const StepReads& reads) {
  const hn::ScalableTag<float> d;
  const hn::CappedTag<float, 1> one;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  constexpr int kVectors = 4;
  bool finite = true;
  int64_t j = 0;
#if HWY_CAP_GE512
  // With 32 registers one head can take rows of 128 floats whole: longer runs of memory.
  if constexpr (R <= 1 && kWrite != StepWrite::kWedge) {
    for (; j + 2 * kVectors * lanes <= item.Dv; j += 2 * kVectors * lanes) {
      finite &= Strip<kWrite, kDecay, R, 2 * kVectors>(item, reads, j, d);
    }
  }
#endif
  for (; j + kVectors * lanes <= item.Dv; j += kVectors * lanes) {
    finite &= Strip<kWrite, kDecay, R, kVectors>(item, reads, j, d);
  }
  for (; j + lanes <= item.Dv; j += lanes) finite &= Strip<kWrite, kDecay, R, 1>(item, reads, j, d);
  for (; j < item.Dv; ++j) finite &= Strip<kWrite, kDecay, R, 1>(item, reads, j, one);
  return finite;
}

template <StepWrite kWrite, bool kDecay>
bool ReadGroup(const StepItem& item, const StepReads& reads, int64_t heads) {
  switch (heads) {
    case 0: return AllStrips<kWrite, kDecay, 0>(item, reads);
    case 1: return AllStrips<kWrite, kDecay, 1>(item, reads);
    case 2: return AllStrips<kWrite, kDecay, 2>(item, reads);
    case 3: return AllStrips<kWrite, kDecay, 3>(item, reads);
    default: return AllStrips<kWrite, kDecay, 4>(item, reads);
  }
}

template <StepWrite kWrite>
bool WriteGroup(const StepItem& item, const StepReads& reads, int64_t heads) {
  return item.decay == 1.0f ? ReadGroup<kWrite, false>(item, reads, heads)
                            : ReadGroup<kWrite, true>(item, reads, heads);
}

bool WriteAndReadGroup(const StepItem& item, const StepReads& reads, int64_t heads) {
  switch (item.rule) {
    case WriteRule::kOuter: return WriteGroup<StepWrite::kOuter>(item, reads, heads);
    case WriteRule::kDelta:
    case WriteRule::kGatedDelta: return WriteGroup<StepWrite::kDelta>(item, reads, heads);
    case WriteRule::kWedge: return WriteGroup<StepWrite::kWedge>(item, reads, heads);
  }
  return true;
}

// Returns whether the state is finite, as far as it was looked at.
bool StepOne(const StepItem& item, StepReads reads, int64_t heads) {
  bool write = item.k != nullptr;
  bool finite = true;
  while (write || heads > 0) {
    const int64_t group = std::min(heads, kReadHeads);
    finite &= write ? WriteAndReadGroup(item, reads, group) : ReadGroup<StepWrite::kNone, false>(item, reads, group);
    write = false;
    heads -= group;
    reads.q += group * reads.q_head;
    reads.out += group * reads.out_head;
  }
  return finite || AllFinite(item.state, item.Dk, item.Dv, item.row);
}

// Returns the first item whose state is not finite; `end` if there is none.
int64_t StepItems(const MemoryStepArgs& args, int64_t begin, int64_t end) {
  const int64_t R = args.H / args.G;
  int64_t first_diverged = end;
  for (int64_t at = begin; at < end; ++at) {
    const int64_t b = at / args.G, g = at % args.G;
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
      const hn::CappedTag<float, 1> one;
      item.decay = hn::GetLane(ExpNonPositive(one, hn::Set(one, *args.evicted.log_decay.At(b, g, 0))));
      item.strength = *args.evicted.write_strength.At(b, g, 0);
      item.prediction_decay = args.rule == WriteRule::kGatedDelta ? item.decay : 1.0f;
    }
    StepReads reads{};
    if (args.q) {
      reads = {.q = args.q.At(b, g * R, 0),
               .q_head = args.q.head,
               .out = args.reads.At(b, g * R, 0),
               .out_head = args.reads.head};
    }
    if (!StepOne(item, reads, args.q ? R : 0)) first_diverged = std::min(first_diverged, at);
  }
  return first_diverged;
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace tensorcache
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tensorcache {

HWY_EXPORT(StepItems);

Status MemoryStep(const MemoryStepArgs& args, int64_t begin, int64_t end) {
  TC_CHECK(ValidateMemoryStep(args).ok());
  TC_CHECK(0 <= begin && end <= args.B * args.G);
  TC_CHECK(args.state);
  const int64_t diverged = HWY_DYNAMIC_DISPATCH(StepItems)(args, begin, end);
  if (diverged >= end) return OkStatus();
  return StateDiverged(args.rule, diverged / args.G, diverged % args.G);
}

}  // namespace tensorcache
#endif  // HWY_ONCE
