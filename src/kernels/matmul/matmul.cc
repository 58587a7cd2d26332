// The SIMD products: one pass over the weights, fp32 accumulation.
#include "tensorcache/kernels/matmul.h"

#include <algorithm>
#include <array>
#include <utility>

#include "core/check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/matmul/matmul.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include "kernels/simd/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tensorcache {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::ScalableTag<float>;
using VF = hn::Vec<DF>;

// Readers of one weight row: Load and LoadTail give the stored values from column k on as floats. Those of an int8 row
// still want the scale of their group.
struct Fp32Row {
  static constexpr bool kScaled = false;
  Fp32Row(const Fp32Weights& w, int64_t row) : p(w.data + row * w.stride) {}
  VF Load(DF d, int64_t k) const { return hn::LoadU(d, p + k); }
  VF LoadTail(DF d, int64_t k, size_t count) const { return LoadPartial(d, p + k, count); }

  const float* p;
};

struct Bf16Row {
  static constexpr bool kScaled = false;
  Bf16Row(const Bf16Weights& w, int64_t row) : p(w.data + row * w.stride) {}
  VF Load(DF d, int64_t k) const { return Widen(d, hn::LoadU(D16(), p + k)); }
  VF LoadTail(DF d, int64_t k, size_t count) const { return Widen(d, LoadPartial(D16(), p + k, count)); }

  using D16 = hn::Rebind<uint16_t, DF>;
  static VF Widen(DF d, hn::Vec<D16> v) {
    return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(hn::RebindToUnsigned<DF>(), v)));
  }

  const uint16_t* p;
};

struct Int8Row {
  static constexpr bool kScaled = true;
  Int8Row(const Int8Weights& w, int64_t row) : p(w.data + row * w.stride), scales(w.scales + row * w.scale_stride) {}
  VF Load(DF d, int64_t k) const { return Widen(d, hn::LoadU(D8(), p + k)); }
  VF LoadTail(DF d, int64_t k, size_t count) const { return Widen(d, LoadPartial(D8(), p + k, count)); }

  using D8 = hn::Rebind<int8_t, DF>;
  static VF Widen(DF d, hn::Vec<D8> v) { return hn::ConvertTo(d, hn::PromoteTo(hn::RebindToSigned<DF>(), v)); }

  const int8_t* p;
  const float* scales;
};

Fp32Row MakeRow(const Fp32Weights& w, int64_t row) { return Fp32Row(w, row); }
Bf16Row MakeRow(const Bf16Weights& w, int64_t row) { return Bf16Row(w, row); }
Int8Row MakeRow(const Int8Weights& w, int64_t row) { return Int8Row(w, row); }

// fp32 and bf16 rows are one group.
int64_t GroupOf(const Fp32Weights&, int64_t in) { return in; }
int64_t GroupOf(const Bf16Weights&, int64_t in) { return in; }
int64_t GroupOf(const Int8Weights& w, int64_t) { return w.group; }

// The running sums of R weight rows and M tokens, two accumulators each. fp32 and bf16: vectors go to them
// alternately, since one alone would wait for the latency of its own additions in a tile of one row and one token.
// int8: [1] is the sum of the current group without its scale, [0] that of the finished groups. The order of additions
// does not depend on R and M, so that every tile shape gives the same bits.
template <int R, int M, class Row>
struct Sums {
  Sums(const std::array<Row, R>& rows, const float* first, int64_t x_stride) : rows(rows) {
    for (int m = 0; m < M; ++m) x[m] = first + m * x_stride;
    for (int r = 0; r < R; ++r) {
      for (int m = 0; m < M; ++m) acc[r][m][0] = acc[r][m][1] = hn::Zero(d);
    }
  }

  // Adds the products of the vector at column k to accumulator A, or to that of the group.
  template <int A>
  HWY_INLINE void Add(int64_t k) {
    constexpr int kInto = Row::kScaled ? 1 : A;
    VF weight[R];
    for (int r = 0; r < R; ++r) weight[r] = KeepInRegister(rows[r].Load(d, k));
    for (int m = 0; m < M; ++m) {
      const VF xv = KeepInRegister(hn::LoadU(d, x[m] + k));
      for (int r = 0; r < R; ++r) acc[r][m][kInto] = hn::MulAdd(weight[r], xv, acc[r][m][kInto]);
    }
  }

  HWY_INLINE void AddTail(int64_t k, size_t count) {
    VF weight[R];
    for (int r = 0; r < R; ++r) weight[r] = rows[r].LoadTail(d, k, count);
    for (int m = 0; m < M; ++m) {
      const VF xv = LoadPartial(d, x[m] + k, count);
      for (int r = 0; r < R; ++r) acc[r][m][1] = hn::MulAdd(weight[r], xv, acc[r][m][1]);
    }
  }

  HWY_INLINE void EndGroup(int64_t g) {
    if constexpr (Row::kScaled) {
      for (int r = 0; r < R; ++r) {
        const VF scale = hn::Set(d, rows[r].scales[g]);
        for (int m = 0; m < M; ++m) {
          acc[r][m][0] = hn::MulAdd(scale, acc[r][m][1], acc[r][m][0]);
          acc[r][m][1] = hn::Zero(d);
        }
      }
    }
  }

  float Total(int r, int m) const { return hn::GetLane(hn::SumOfLanes(d, hn::Add(acc[r][m][0], acc[r][m][1]))); }

  const DF d;
  std::array<Row, R> rows;
  const float* x[M];
  VF acc[R][M][2];
};

// How far ahead the streams of a memory-bound tile are fetched: enough to bridge what the hardware's prefetchers miss
// at page ends, not so much that lines are evicted before their turn.
constexpr int64_t kPrefetchBytes = 512;

// Fetches the lines of p[0, count), kPrefetchBytes later, for one use: weights pass through the first-level cache without
// pushing x out of it. Touches nothing: p may point past the weights.
template <class T>
HWY_INLINE void PrefetchAhead(const T* p, int64_t count) {
  const char* bytes = reinterpret_cast<const char*>(p) + kPrefetchBytes;
  for (int64_t i = 0; i < count * static_cast<int64_t>(sizeof(T)); i += 64) __builtin_prefetch(bytes + i, 0, 0);
}

// What of the weights a tile fetches into the second cache level while it multiplies: its own columns `begin` to `end` of
// the row `ahead` rows later. The parts of the tokens share the columns, so that a block of rows comes from memory while the
// block before it is worked on. ahead 0: nothing.
struct NextBlock {
  int64_t ahead = 0;
  int64_t begin = 0, end = 0;
};

template <class Weights>
HWY_INLINE void PrefetchNextBlock(const Weights& w, const NextBlock& next, int64_t row) {
  const auto* p = w.data + (row + next.ahead) * w.stride;
  const char* begin = reinterpret_cast<const char*>(p + next.begin);
  const char* end = reinterpret_cast<const char*>(p + next.end);
  for (; begin < end; begin += 64) __builtin_prefetch(begin, 0, 2);
}

// y of the R weight rows row, row + step, ... and M tokens from `token` on.
template <int R, int M, class Weights>
void Tile(const Weights& w, const LinearArgs& args, int64_t row, int64_t step, int64_t token) {
  const DF d;
  const int64_t N = static_cast<int64_t>(hn::Lanes(d));
  using Row = decltype(MakeRow(w, 0));
  const auto rows = [&]<size_t... I>(std::index_sequence<I...>) {
    return std::array<Row, R>{MakeRow(w, row + static_cast<int64_t>(I) * step)...};
  };
  Sums<R, M, Row> sums(rows(std::make_index_sequence<R>()), args.x + token * args.x_stride, args.x_stride);

  const int64_t group = GroupOf(w, args.in);
  int64_t k = 0;
  int64_t g = 0;
  for (int64_t end = std::min(args.in, group);; end = std::min(args.in, end + group)) {
    for (; k + 2 * N <= end; k += 2 * N) {
      if constexpr (M == 1) {
        for (const Row& r : sums.rows) PrefetchAhead(r.p + k, 2 * N);
      }
      sums.template Add<0>(k);
      sums.template Add<1>(k + N);
    }
    if (end == args.in) break;
    sums.EndGroup(g++);
  }
  // A group is a multiple of two vectors, so only the last one leaves columns over.
  if (k + N <= args.in) {
    sums.template Add<0>(k);
    k += N;
  }
  if (k < args.in) sums.AddTail(k, static_cast<size_t>(args.in - k));
  if (args.in > 0) sums.EndGroup(g);

  for (int m = 0; m < M; ++m) {
    for (int r = 0; r < R; ++r) args.y[(token + m) * args.y_stride + row + r * step] = sums.Total(r, m);
  }
}

// Tokens go in nearly equal parts of at most 3. Rows go several at a time, so that loads of x are shared and R x M x 2
// accumulators fit the registers: 32 of them with vectors of 64 bytes, mostly 16 with shorter ones.
constexpr int64_t kMaxPart = 3;
constexpr int kSomeRows = HWY_CAP_GE512 ? 4 : 2;
// One token: four rows, so four streams from memory.
constexpr int kStreams = 4;
// Weights that stay in the first cache level while each part of the tokens passes over them.
constexpr int64_t kBlockBytes = 12 * 1024;

// Rows [begin, end) for tokens [token, token + M). The R rows of a tile lie far apart, each at the head of its own long
// stream of consecutive rows: prefetchers follow several long streams faster than one, and than many short ones.
template <int R, int M, class Weights>
void RunRows(const Weights& w, const LinearArgs& args, int64_t begin, int64_t end, int64_t token,
             const NextBlock& next) {
  const int64_t step = (end - begin) / R;
  for (int64_t row = begin; row < begin + step; ++row) {
    if (next.ahead > 0) {
      for (int64_t r = 0; r < R; ++r) PrefetchNextBlock(w, next, row + r * step);
    }
    Tile<R, M>(w, args, row, step, token);
  }
  for (int64_t row = begin + R * step; row < end; ++row) Tile<1, M>(w, args, row, 1, token);
}

template <class Weights>
void RowsOfPart(const Weights& w, const LinearArgs& args, int64_t begin, int64_t end, int64_t token, int64_t tokens,
                const NextBlock& next) {
  switch (tokens) {
    case 1: return RunRows<kStreams, 1>(w, args, begin, end, token, next);
    case 2: return RunRows<kSomeRows, 2>(w, args, begin, end, token, next);
    case 3: return RunRows<kSomeRows, 3>(w, args, begin, end, token, next);
    default: TC_CHECK(false);
  }
}

template <class Weights>
void Small(const Weights& w, const LinearArgs& args) {
  const int64_t parts = (args.n + kMaxPart - 1) / kMaxPart;
  const int64_t row_bytes = std::max<int64_t>(1, args.in * static_cast<int64_t>(sizeof(*w.data)));
  const int64_t rows = args.end - args.begin;
  const int64_t block = parts == 1 ? rows : std::max<int64_t>(kSomeRows, kBlockBytes / row_bytes);
  for (int64_t begin = args.begin; begin < args.end; begin += block) {
    const int64_t end = std::min(args.end, begin + block);
    for (int64_t part = 0; part < parts; ++part) {
      const int64_t token = part * args.n / parts;
      const NextBlock next = {
          .ahead = end < args.end ? block : 0, .begin = part * args.in / parts, .end = (part + 1) * args.in / parts};
      RowsOfPart(w, args, begin, end, token, (part + 1) * args.n / parts - token, next);
    }
  }
}

template <class Weights>
void Widen(const Weights& w, int64_t in, int64_t begin, int64_t end, float* out) {
  const DF d;
  const int64_t N = static_cast<int64_t>(hn::Lanes(d));
  const int64_t group = GroupOf(w, in);
  for (int64_t r = begin; r < end; ++r, out += in) {
    const auto row = MakeRow(w, r);
    int64_t k = 0;
    for (int64_t g = 0; k < in; ++g) {
      const int64_t group_end = std::min(in, k + group);
      VF scale = hn::Set(d, 1.0f);
      if constexpr (row.kScaled) scale = hn::Set(d, row.scales[g]);
      for (; k + N <= group_end; k += N) hn::StoreU(hn::Mul(row.Load(d, k), scale), d, out + k);
      if (k < group_end) {
        const size_t count = static_cast<size_t>(group_end - k);
        StorePartial(hn::Mul(row.LoadTail(d, k, count), scale), d, out + k, count);
        k = group_end;
      }
    }
  }
}

void SmallFp32(const Fp32Weights& w, const LinearArgs& args) { Small(w, args); }
void SmallBf16(const Bf16Weights& w, const LinearArgs& args) { Small(w, args); }
void SmallInt8(const Int8Weights& w, const LinearArgs& args) { Small(w, args); }
void WidenBf16(const Bf16Weights& w, int64_t in, int64_t begin, int64_t end, float* out) {
  Widen(w, in, begin, end, out);
}
void WidenInt8(const Int8Weights& w, int64_t in, int64_t begin, int64_t end, float* out) {
  Widen(w, in, begin, end, out);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace tensorcache
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tensorcache {

HWY_EXPORT(SmallFp32);
HWY_EXPORT(SmallBf16);
HWY_EXPORT(SmallInt8);
HWY_EXPORT(WidenBf16);
HWY_EXPORT(WidenInt8);

namespace {

void CheckArgs(const LinearArgs& args) {
  TC_CHECK(0 <= args.n && args.n <= kSmallBatch);
  TC_CHECK(0 <= args.in && 0 <= args.begin && args.begin <= args.end);
}

}  // namespace

void LinearSmall(const Fp32Weights& weights, const LinearArgs& args) {
  CheckArgs(args);
  HWY_DYNAMIC_DISPATCH(SmallFp32)(weights, args);
}

void LinearSmall(const Bf16Weights& weights, const LinearArgs& args) {
  CheckArgs(args);
  HWY_DYNAMIC_DISPATCH(SmallBf16)(weights, args);
}

void LinearSmall(const Int8Weights& weights, const LinearArgs& args) {
  CheckArgs(args);
  TC_CHECK(weights.group > 0 && weights.group % 32 == 0);
  HWY_DYNAMIC_DISPATCH(SmallInt8)(weights, args);
}

void DequantizeRows(const Bf16Weights& weights, int64_t in, int64_t begin, int64_t end, float* out) {
  HWY_DYNAMIC_DISPATCH(WidenBf16)(weights, in, begin, end, out);
}

void DequantizeRows(const Int8Weights& weights, int64_t in, int64_t begin, int64_t end, float* out) {
  TC_CHECK(weights.group > 0 && weights.group % 32 == 0);
  HWY_DYNAMIC_DISPATCH(WidenInt8)(weights, in, begin, end, out);
}

}  // namespace tensorcache
#endif  // HWY_ONCE
