// Small matrix products on tiles that live in L1/L2: C (=, += or -=) diag(row_scale) A B, fp32, one thread, no packing.
//
// A is read element by element and broadcast, so it may have any strides (a transposed A is free). B and C are read and
// written in whole vectors: their rows must be padded to a multiple of kTilePad floats, and N counts the padding. Use on
// scratch, not on user arrays. Triangular operands skip blocks of zeros instead of multiplying them.
//
// Include inside a Highway foreach_target translation unit only.

#if defined(TENSORCACHE_TILE_GEMM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TENSORCACHE_TILE_GEMM_INL_H_
#undef TENSORCACHE_TILE_GEMM_INL_H_
#else
#define TENSORCACHE_TILE_GEMM_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>

#include "kernels/simd/tile.h"

HWY_BEFORE_NAMESPACE();
namespace tensorcache {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Vectors of at most kTilePad floats, so that padded rows hold a whole number of them on every target.
using TileTag = hn::CappedTag<float, kTilePad>;

enum class TileStore { kSet, kAdd, kSubtract };

// What of the product is known to be zero or not needed; i, k, j index rows of A, columns of A, columns of B.
enum class TileShape {
  kFull,
  kLowerResult,  // only C(i, j) with j <= i is needed; columns up to the end of i's row block are computed
  kLowerA,       // A(i, k) counts only for k <= i; A must hold finite values up to the end of i's row block
  kUpperA,       // A(i, k) counts only for k >= i; likewise from the start of i's row block
};

struct TileSizes {
  int64_t M, N, K;
};
struct TileA {  // M x K, element (i, k) at data[i * row + k * col]
  const float* data;
  int64_t row, col;
};
struct TileB {  // K x N
  const float* data;
  int64_t row;
};
struct TileC {  // M x N
  float* data;
  int64_t row;
};
struct TileOptions {
  TileStore store = TileStore::kSet;
  const float* row_scale = nullptr;  // M factors, or none
  float c_scale = 1.0f;              // kAdd: C = c_scale * C + A B
};

struct TileProduct {
  TileSizes size;
  TileA a;
  TileB b;
  TileC c;
  TileOptions options;
};

// Asked by property, not by name of the target: Highway goes on adding targets with AVX-512.
inline constexpr int kVectorRegisters = HWY_CAP_GE512 || HWY_ARCH_ARM_A64 ? 32 : 16;
inline constexpr int kTileVectors = 2, kTileRows = kVectorRegisters / 4;  // half of the registers are accumulators

// C[MR rows, NV vectors] over k in [k_begin, k_end).
template <int MR, int NV>
HWY_INLINE void TileBlock(const TileProduct& t, int64_t i, int64_t j, int64_t k_begin, int64_t k_end) {
  const TileTag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  using V = hn::Vec<TileTag>;
  V acc[MR][NV];
#pragma GCC unroll 8
  for (int r = 0; r < MR; ++r) {
#pragma GCC unroll 4
    for (int n = 0; n < NV; ++n) acc[r][n] = hn::Zero(d);
  }
  const float* HWY_RESTRICT a = t.a.data + i * t.a.row + k_begin * t.a.col;
  const float* HWY_RESTRICT b = t.b.data + k_begin * t.b.row + j;
  for (int64_t k = k_begin; k < k_end; ++k, a += t.a.col, b += t.b.row) {
    V bv[NV];
#pragma GCC unroll 4
    for (int n = 0; n < NV; ++n) bv[n] = hn::LoadU(d, b + n * lanes);
#pragma GCC unroll 8
    for (int r = 0; r < MR; ++r) {
      const V av = hn::Set(d, a[r * t.a.row]);
#pragma GCC unroll 4
      for (int n = 0; n < NV; ++n) acc[r][n] = hn::MulAdd(av, bv[n], acc[r][n]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < MR; ++r) {
    float* HWY_RESTRICT c = t.c.data + (i + r) * t.c.row + j;
#pragma GCC unroll 4
    for (int n = 0; n < NV; ++n) {
      V value = acc[r][n];
      if (t.options.row_scale != nullptr) value = hn::Mul(value, hn::Set(d, t.options.row_scale[i + r]));
      if (t.options.store == TileStore::kAdd)
        value = hn::MulAdd(hn::LoadU(d, c + n * lanes), hn::Set(d, t.options.c_scale), value);
      if (t.options.store == TileStore::kSubtract) value = hn::Sub(hn::LoadU(d, c + n * lanes), value);
      hn::StoreU(value, d, c + n * lanes);
    }
  }
}

// All columns of MR rows from row i.
template <TileShape shape, int MR>
HWY_INLINE void TileRowBlock(const TileProduct& t, int64_t i) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(TileTag()));
  const int64_t k_begin = shape == TileShape::kUpperA ? std::min(i, t.size.K) : 0;
  const int64_t k_end = shape == TileShape::kLowerA ? std::min(i + MR, t.size.K) : t.size.K;
  const int64_t n_end = shape == TileShape::kLowerResult ? std::min(i + MR, t.size.N) : t.size.N;
  int64_t j = 0;
  for (; n_end - j > (kTileVectors - 1) * lanes; j += kTileVectors * lanes) {
    TileBlock<MR, kTileVectors>(t, i, j, k_begin, k_end);
  }
  for (; j < n_end; j += lanes) TileBlock<MR, 1>(t, i, j, k_begin, k_end);
}

template <TileShape shape = TileShape::kFull>
HWY_NOINLINE void TileGemm(TileSizes size, TileA a, TileB b, TileC c, TileOptions options = {}) {
  const TileProduct t{size, a, b, c, options};
  int64_t i = 0;
  for (; i + kTileRows <= t.size.M; i += kTileRows) TileRowBlock<shape, kTileRows>(t, i);
  if constexpr (kTileRows > 4) {
    if (i + 4 <= t.size.M) {
      TileRowBlock<shape, 4>(t, i);
      i += 4;
    }
  }
  if (i + 2 <= t.size.M) {
    TileRowBlock<shape, 2>(t, i);
    i += 2;
  }
  if (i < t.size.M) TileRowBlock<shape, 1>(t, i);
}

// out[c, r] = in[r, c]. Touches nothing outside rows x cols of either.
HWY_INLINE void TileTranspose(const float* in, int64_t in_row, int64_t rows, int64_t cols, float* out,
                              int64_t out_row) {
  int64_t r = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::FixedTag<float, 4> d;
  const hn::FixedTag<uint64_t, 2> d64;
  const auto low = [&](auto a, auto b) {
    return hn::BitCast(d, hn::InterleaveLower(d64, hn::BitCast(d64, a), hn::BitCast(d64, b)));
  };
  const auto high = [&](auto a, auto b) {
    return hn::BitCast(d, hn::InterleaveUpper(d64, hn::BitCast(d64, a), hn::BitCast(d64, b)));
  };
  // Sixteen rows at a time, so that every line of `out` is filled before the next is touched.
  for (int64_t block = 0; block + 4 <= rows; block += 16) {
    const int64_t block_end = std::min(block + 16, rows / 4 * 4);
    int64_t c = 0;
    for (; c + 4 <= cols; c += 4) {
      for (r = block; r < block_end; r += 4) {
        const float* p = in + r * in_row + c;
        const auto row0 = hn::LoadU(d, p), row1 = hn::LoadU(d, p + in_row);
        const auto row2 = hn::LoadU(d, p + 2 * in_row), row3 = hn::LoadU(d, p + 3 * in_row);
        const auto a = hn::InterleaveLower(d, row0, row1), b = hn::InterleaveLower(d, row2, row3);
        const auto e = hn::InterleaveUpper(d, row0, row1), f = hn::InterleaveUpper(d, row2, row3);
        float* o = out + c * out_row + r;
        hn::StoreU(low(a, b), d, o);
        hn::StoreU(high(a, b), d, o + out_row);
        hn::StoreU(low(e, f), d, o + 2 * out_row);
        hn::StoreU(high(e, f), d, o + 3 * out_row);
      }
    }
    for (; c < cols; ++c) {
      for (r = block; r < block_end; ++r) out[c * out_row + r] = in[r * in_row + c];
    }
  }
  r = rows / 4 * 4;
#endif
  for (; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) out[c * out_row + r] = in[r * in_row + c];
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tensorcache
HWY_AFTER_NAMESPACE();

#endif  // include guard
