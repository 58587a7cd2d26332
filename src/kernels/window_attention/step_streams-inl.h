// How the decode step reads keys and values: as streams side by side (prefetchers follow several faster than one),
// asked for ahead of time, widened to floats.
//
// Include inside a Highway foreach_target translation unit only.

#if defined(TENSORCACHE_WINDOW_ATTENTION_STEP_STREAMS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TENSORCACHE_WINDOW_ATTENTION_STEP_STREAMS_INL_H_
#undef TENSORCACHE_WINDOW_ATTENTION_STEP_STREAMS_INL_H_
#else
#define TENSORCACHE_WINDOW_ATTENTION_STEP_STREAMS_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <type_traits>

#include "kernels/simd/math-inl.h"
#include "kernels/window_attention/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tensorcache {
namespace HWY_NAMESPACE {

inline constexpr int64_t kStreams = wa::kStepStreams;

// A row of numbers as vectors of floats: `whole` of them and, if the width is no multiple, one more that is moved back
// so that it ends with the row: no read or write outside, at the price of an overlap. Needs width >= lanes.
//
// With a ring of bf16 whole vectors come in pairs: the even and the odd ones of 2 lanes numbers, because a word of two
// bf16 becomes two floats in one operation each. Queries and outputs are kept in the same order.
template <class Tag_, class Stored_>
struct StepRow {
  using Tag = Tag_;
  using Stored = Stored_;
  using V = hn::Vec<Tag>;
  static constexpr bool kPairs = std::is_same_v<Stored, uint16_t> && hn::MaxLanes(Tag()) >= 4;

  explicit StepRow(int64_t row_width)
      : width(row_width),
        lanes(static_cast<int64_t>(hn::Lanes(Tag()))),
        whole(row_width / lanes),
        count((row_width + lanes - 1) / lanes) {}
  int64_t Offset(int64_t i) const { return std::min(i * lanes, width - lanes); }

  static HWY_INLINE V Load(const float* from) { return hn::LoadU(Tag(), from); }
  static HWY_INLINE V Load(const uint16_t* from) {
    const hn::Rebind<uint16_t, Tag> d16;
    return hn::BitCast(Tag(), hn::ShiftLeft<16>(hn::PromoteTo(hn::RebindToUnsigned<Tag>(), hn::LoadU(d16, from))));
  }
  static HWY_INLINE void LoadPair(const float* from, V& a, V& b) {
    if constexpr (kPairs) {
      hn::LoadInterleaved2(Tag(), from, a, b);
    } else {
      a = Load(from);
      b = Load(from + hn::Lanes(Tag()));
    }
  }
  static HWY_INLINE void LoadPair(const uint16_t* from, V& a, V& b) {
    if constexpr (kPairs) {
      const hn::RebindToUnsigned<Tag> du;
      const auto words = KeepInRegister(hn::BitCast(du, hn::LoadU(hn::Repartition<uint16_t, Tag>(), from)));
      a = hn::BitCast(Tag(), hn::ShiftLeft<16>(words));
      b = hn::BitCast(Tag(), hn::And(words, hn::Set(du, 0xFFFF0000u)));
    } else {
      a = Load(from);
      b = Load(from + hn::Lanes(Tag()));
    }
  }
  static HWY_INLINE void StorePair(V a, V b, float* to) {
    if constexpr (kPairs) {
      hn::StoreInterleaved2(a, b, Tag(), to);
    } else {
      hn::StoreU(a, Tag(), to);
      hn::StoreU(b, Tag(), to + hn::Lanes(Tag()));
    }
  }

  int64_t width, lanes, whole, count;
};

// Keys or values read as streams side by side: row i of stream s is at[s] + i * row.
template <class Source>
struct StepStreams {
  const Source* at[kStreams];
  int64_t row;
};

// A block of keys and values: number i is row i / kStreams of stream i % kStreams.
template <class Source>
struct StepKeys {
  StepStreams<Source> k, v;
  int64_t count;
};

// The block that follows `done` keys of a run. Streams are equal parts of the run, the first ones maybe a row longer;
// blocks of a run are about equally long.
template <class Source>
inline StepKeys<Source> CutBlock(const wa::KeyRunOf<Source>& run, int64_t done) {
  constexpr int64_t kRows = wa::kStepKeys / kStreams;
  const int64_t rows = (run.count + kStreams - 1) / kStreams;
  const int64_t blocks = (rows + kRows - 1) / kRows, block_rows = (rows + blocks - 1) / blocks;
  StepKeys<Source> keys;
  keys.count = std::min(block_rows * kStreams, run.count - done);
  keys.k.row = run.k_row;
  keys.v.row = run.v_row;
  for (int64_t s = 0; s < kStreams; ++s) {
    const int64_t first = s * (run.count / kStreams) + std::min(s, run.count % kStreams) + done / kStreams;
    keys.k.at[s] = run.k + first * run.k_row;
    keys.v.at[s] = run.v + first * run.v_row;
  }
  return keys;
}

// The block of an item's ring that follows `done` keys. A ring that wraps is two runs.
template <class Stored>
inline StepKeys<Stored> RingBlock(const WindowAttentionStepArgs<float, Stored>& args, int64_t item, int64_t done) {
  const KeyValueRing<Stored>& ring = args.ring;
  const int64_t b = item / args.shape.G, g = item % args.shape.G;
  const int64_t until_wrap = ring.capacity - ring.start;
  const bool wrapped = done >= until_wrap;
  const int64_t slot = wrapped ? 0 : ring.start, before = wrapped ? until_wrap : 0;
  const int64_t count = std::min(ring.capacity - slot, args.shape.P + 1 - before);
  return CutBlock(
      wa::KeyRunOf<Stored>{ring.k.At(b, g, slot), ring.v.At(b, g, slot), ring.k.token, ring.v.token, before, count},
      done - before);
}

// Keys or values of a block on their way through: which rows to read, and which ones to ask for meanwhile.
template <class Source>
class StepPhase {
 public:
  // One row of every stream.
  struct Rows {
    const Source* const* at;
    int64_t offset;
    const Source* operator[](int64_t s) const { return at[s] + offset; }
  };

  // `next` is read after `now`; may be null.
  StepPhase(const StepStreams<Source>& now, const StepStreams<Source>* next, int64_t count, int64_t width)
      : now_(now),
        next_(next),
        rows_((count + kStreams - 1) / kStreams),
        ahead_(std::max<int64_t>(1, wa::kStepAhead / (width * static_cast<int64_t>(sizeof(Source))))) {}

  HWY_INLINE Rows Now(int64_t i) const { return {now_.at, i * now_.row}; }
  // Rows kStepAhead bytes further on, at the end the first ones of `next`.
  HWY_INLINE Rows Ahead(int64_t i) const {
    const int64_t row = i + ahead_;
    if (row < rows_) return Now(row);
    return next_ != nullptr ? Rows{next_->at, (row - rows_) * next_->row} : Now(i);
  }

 private:
  const StepStreams<Source>& now_;
  const StepStreams<Source>* next_;
  int64_t rows_, ahead_;
};

// Asks for the lines that hold kVectors vectors, into the second-level cache: more requests fit on the way to it than
// on the way to the first.
template <class Tag, int kVectors, class Source>
HWY_INLINE void AskFor(const Source* from) {
  constexpr int kLine = 64, kBytes = kVectors * static_cast<int>(hn::MaxLanes(Tag()) * sizeof(Source));
#pragma GCC unroll 8
  for (int offset = 0; offset < kBytes; offset += kLine) {
    __builtin_prefetch(reinterpret_cast<const char*>(from) + offset, /*rw=*/0, /*locality=*/2);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tensorcache
HWY_AFTER_NAMESPACE();

#endif  // include guard
