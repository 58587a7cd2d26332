// The triangular systems of the delta rules: what each write of a chunk takes from the writes before it.
//
// Include inside a Highway foreach_target translation unit only.

#if defined(TENSORCACHE_MEMORY_SCAN_SOLVE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TENSORCACHE_MEMORY_SCAN_SOLVE_INL_H_
#undef TENSORCACHE_MEMORY_SCAN_SOLVE_INL_H_
#else
#define TENSORCACHE_MEMORY_SCAN_SOLVE_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>

#include "kernels/simd/tile_gemm-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tensorcache {
namespace HWY_NAMESPACE {

// y_p = x_p - sum_{j<p} L_pj z_j with z = b y, in place: y holds x. Strides may be negative: with the rows backwards
// and the strides of L exchanged it is the transposed system.
struct SolveSystem {
  int64_t n;      // rows
  int64_t width;  // of y and z, with padding
  TileA lower;    // L, n x n; what is on and above the diagonal is not read
  const float* strength;
  int64_t strength_step;
  float* y;
  float* z;
  int64_t row;  // stride of y and z
};

// Rows [i, i + MR) and NV vectors of columns from j, which stay in registers: first what they take from all rows before
// i, then what they take from each other.
template <int MR, int NV>
HWY_INLINE void SolveBlock(const SolveSystem& s, int64_t i, int64_t j) {
  const TileTag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  using V = hn::Vec<TileTag>;
  V y[MR][NV], z[NV];
#pragma GCC unroll 8
  for (int r = 0; r < MR; ++r) {
#pragma GCC unroll 4
    for (int n = 0; n < NV; ++n) y[r][n] = hn::LoadU(d, s.y + (i + r) * s.row + j + n * lanes);
  }
  const float* HWY_RESTRICT column = s.lower.data + i * s.lower.row;
  const float* HWY_RESTRICT solved = s.z + j;
  for (int64_t k = 0; k < i; ++k, column += s.lower.col, solved += s.row) {
#pragma GCC unroll 4
    for (int n = 0; n < NV; ++n) z[n] = hn::LoadU(d, solved + n * lanes);
#pragma GCC unroll 8
    for (int r = 0; r < MR; ++r) {
      const V factor = hn::Set(d, column[r * s.lower.row]);
#pragma GCC unroll 4
      for (int n = 0; n < NV; ++n) y[r][n] = hn::NegMulAdd(factor, z[n], y[r][n]);
    }
  }
#pragma GCC unroll 8
  for (int k = 0; k < MR; ++k, column += s.lower.col) {
    const V strength = hn::Set(d, s.strength[(i + k) * s.strength_step]);
    const int64_t at = (i + k) * s.row + j;
#pragma GCC unroll 4
    for (int n = 0; n < NV; ++n) {
      z[n] = hn::Mul(strength, y[k][n]);
      hn::StoreU(y[k][n], d, s.y + at + n * lanes);
      hn::StoreU(z[n], d, s.z + at + n * lanes);
    }
#pragma GCC unroll 8
    for (int r = k + 1; r < MR; ++r) {
      const V factor = hn::Set(d, column[r * s.lower.row]);
#pragma GCC unroll 4
      for (int n = 0; n < NV; ++n) y[r][n] = hn::NegMulAdd(factor, z[n], y[r][n]);
    }
  }
}

// All columns of MR rows from row i.
template <int MR>
HWY_INLINE void SolveRows(const SolveSystem& s, int64_t i) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(TileTag()));
  int64_t j = 0;
  for (; s.width - j > (kTileVectors - 1) * lanes; j += kTileVectors * lanes) SolveBlock<MR, kTileVectors>(s, i, j);
  for (; j < s.width; j += lanes) SolveBlock<MR, 1>(s, i, j);
}

HWY_NOINLINE inline void Solve(const SolveSystem& system) {
  const SolveSystem s = system;  // a copy, which the stores to y and z cannot alias
  int64_t i = 0;
  for (; i + kTileRows <= s.n; i += kTileRows) SolveRows<kTileRows>(s, i);
  for (; i < s.n; ++i) SolveRows<1>(s, i);
}

}  // namespace HWY_NAMESPACE
}  // namespace tensorcache
HWY_AFTER_NAMESPACE();

#endif  // include guard
