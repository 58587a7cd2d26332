// The decode step of memory_scan: a strip of columns at a time, so that A passes through the core once.
//
// The delta rule must know k A before it can write. It reads its strip once for both k A and q A, and then, in L1, writes;
// the read after the write follows from q A' = exp(g) q A + b (q . k) u.

#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "kernels/memory_scan/memory_scan.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/memory_scan/memory_step.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace tensorcache {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Query heads that read in one pass; more take further passes over the strip.
inline constexpr int64_t kStepHeads = 4;

// One (batch, head).
struct StepItem {
  int64_t Dk, Dv;
  WriteRule rule;
  float decay, strength;
  const float* k;  // null: nothing is written
  const float* v;
  float* state;
  int64_t row;     // stride of the state's rows
  int64_t to_next; // from this state to the next item's, 0 for the last
};

// Queries of R heads, and where their reads go; strides in floats.
struct StepReads {
  const float* q;
  int64_t q_head;
  float* out;
  int64_t out_head;
  float q_dot_k[kStepHeads];  // delta only
};

enum class StepWrite { kNone, kOuter, kDelta, kWedge };

// Columns [j, j + NV vectors) of the state: write, and read with R queries. Tag is a full vector, or one lane for the
// columns that are left over.
template <StepWrite kWrite, int R, int NV, class Tag>
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
  const auto read = [&](int64_t i, const V* value) HWY_ATTR {
    for (int r = 0; r < R; ++r) {
      const V qi = hn::Set(d, q[r * q_head + i]);
      for (int n = 0; n < NV; ++n) acc[r][n] = hn::MulAdd(qi, value[n], acc[r][n]);
    }
  };

  V u[NV], k_row[NV], value[NV];
  if constexpr (kWrite != StepWrite::kNone) {
    for (int n = 0; n < NV; ++n) u[n] = hn::LoadU(d, v + j + n * lanes);
  }
  if constexpr (kWrite == StepWrite::kWedge) {
    for (int n = 0; n < NV; ++n) k_row[n] = hn::Mul(strength, hn::LoadU(d, k + j + n * lanes));
  }
  float* HWY_RESTRICT a = item.state + j;
  if constexpr (kWrite == StepWrite::kDelta) {
    for (int64_t i = 0; i < Dk; ++i, a += row) {
      for (int n = 0; n < NV; ++n) value[n] = hn::LoadU(d, a + n * lanes);
      const V ki = hn::Set(d, k[i]);
      for (int n = 0; n < NV; ++n) u[n] = hn::NegMulAdd(ki, value[n], u[n]);
      read(i, value);
    }
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
        value[n] = hn::MulAdd(decay, value[n], update);
        hn::StoreU(value[n], d, a + n * lanes);
      }
    }
    if constexpr (kWrite == StepWrite::kDelta) {
      // This pass is in L1 and leaves the memory idle: fetch what the next item reads.
      for (int n = 0; n < NV; ++n) __builtin_prefetch(a + to_next + n * lanes, 0, 2);
    } else {
      read(i, value);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int n = 0; n < NV; ++n) {
      if constexpr (kWrite == StepWrite::kDelta) {
        acc[r][n] = hn::MulAdd(decay, acc[r][n], hn::Mul(hn::Set(d, reads.q_dot_k[r]), u[n]));
      }
      hn::StoreU(acc[r][n], d, reads.out + r * reads.out_head + j + n * lanes);
    }
  }
}

template <StepWrite kWrite, int R>
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
      Strip<kWrite, R, 2 * kVectors>(item, reads, j, d);
    }
  }
#endif
  for (; j + kVectors * lanes <= item.Dv; j += kVectors * lanes) Strip<kWrite, R, kVectors>(item, reads, j, d);
  for (; j + lanes <= item.Dv; j += lanes) Strip<kWrite, R, 1>(item, reads, j, d);
  for (; j < item.Dv; ++j) Strip<kWrite, R, 1>(item, reads, j, one);
}

template <StepWrite kWrite>
void ReadGroup(const StepItem& item, const StepReads& reads, int64_t heads) {
  switch (heads) {
    case 0: AllStrips<kWrite, 0>(item, reads); break;
    case 1: AllStrips<kWrite, 1>(item, reads); break;
    case 2: AllStrips<kWrite, 2>(item, reads); break;
    case 3: AllStrips<kWrite, 3>(item, reads); break;
    default: AllStrips<kWrite, 4>(item, reads); break;
  }
}

void StepOne(const StepItem& item, StepReads reads, int64_t heads) {
  bool write = item.k != nullptr;
  do {
    const int64_t group = std::min(heads, kStepHeads);
    if (!write) {
      ReadGroup<StepWrite::kNone>(item, reads, group);
    } else if (item.rule == WriteRule::kOuter) {
      ReadGroup<StepWrite::kOuter>(item, reads, group);
    } else if (item.rule == WriteRule::kWedge) {
      ReadGroup<StepWrite::kWedge>(item, reads, group);
    } else {
      for (int64_t r = 0; r < group; ++r) {
        float dot = 0;
        for (int64_t i = 0; i < item.Dk; ++i) dot += reads.q[r * reads.q_head + i] * item.k[i];
        reads.q_dot_k[r] = dot;
      }
      ReadGroup<StepWrite::kDelta>(item, reads, group);
    }
    write = false;
    heads -= group;
    reads.q += group * reads.q_head;
    reads.out += group * reads.out_head;
  } while (heads > 0);
}

void StepItems(const MemoryStepArgs& args, int64_t begin, int64_t end) {
  const int64_t R = args.H / args.G;
  for (int64_t at = begin; at < end; ++at) {
    const int64_t b = at / args.G, g = at % args.G;
    StepItem item{.Dk = args.Dk, .Dv = args.Dv, .rule = args.rule, .decay = 1, .strength = 0, .k = nullptr,
                  .v = nullptr, .state = args.state.At(b, g, 0), .row = args.state.token, .to_next = 0};
    if (at + 1 < end) item.to_next = args.state.At((at + 1) / args.G, (at + 1) % args.G, 0) - item.state;
    if (args.evicted.k) {
      item.k = args.evicted.k.At(b, g, 0);
      item.v = args.evicted.v.At(b, g, 0);
      item.decay = std::exp(*args.evicted.log_decay.At(b, g, 0));
      item.strength = *args.evicted.write_strength.At(b, g, 0);
    }
    StepReads reads{};
    if (args.q) {
      reads = {.q = args.q.At(b, g * R, 0), .q_head = args.q.head, .out = args.reads.At(b, g * R, 0),
               .out_head = args.reads.head, .q_dot_k = {}};
    }
    StepOne(item, reads, args.q ? R : 0);
  }
}

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

}  // namespace tensorcache
#endif  // HWY_ONCE
