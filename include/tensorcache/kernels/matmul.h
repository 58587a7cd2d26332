// Products with weight matrices for the run half. A weight matrix W is [out, in] with contiguous rows, as checkpoints
// store it; activations are [n, in] fp32.
//
//   Linear:      y[t, o] = sum_i x[t, i] W[o, i]     t < n, begin <= o < end; W in fp32, bf16 or int8
//   Gemm:        C = alpha op(A) op(B) + beta C      fp32 through BLAS
//
// A call computes a range of output features and never starts a thread: the caller splits [0, out) over its threads.
// Strides count elements. Nothing here keeps a pointer.
#pragma once

#include <cstdint>

#include "tensorcache/status.h"

namespace tensorcache {

struct Fp32Weights {
  const float* data = nullptr;
  int64_t stride = 0;  // between rows, >= in
};

// The upper 16 bits of the fp32 pattern.
struct Bf16Weights {
  const uint16_t* data = nullptr;
  int64_t stride = 0;
};

// W[o, i] = data[o, i] * scales[o, i / group]. `group` is a multiple of 32; the last group of a row may be shorter.
struct Int8Weights {
  const int8_t* data = nullptr;
  int64_t stride = 0;
  const float* scales = nullptr;
  int64_t scale_stride = 0;  // between rows, >= Int8Groups(in, group)
  int64_t group = 0;
};

inline int64_t Int8Groups(int64_t in, int64_t group) { return (in + group - 1) / group; }

// x and y do not overlap.
struct LinearArgs {
  const float* x = nullptr;  // [n, in]
  int64_t x_stride = 0;
  float* y = nullptr;  // [n, out]; only columns [begin, end) are written
  int64_t y_stride = 0;
  int64_t n = 0;
  int64_t in = 0;
  int64_t begin = 0;
  int64_t end = 0;
};

// At most this many tokens go through the SIMD products; more go through BLAS.
inline constexpr int64_t kSmallBatch = 32;
// BLAS products are cut into blocks of this many output features, at multiples of it.
inline constexpr int64_t kLinearRowBlock = 128;

// n <= kSmallBatch. y[t, o] is bitwise the same for every n, every range that holds o, and every batch that holds t.
// Streams each weight once from memory: meant to run at memory speed for n = 1.
void LinearSmall(const Fp32Weights& weights, const LinearArgs& args);
void LinearSmall(const Bf16Weights& weights, const LinearArgs& args);
void LinearSmall(const Int8Weights& weights, const LinearArgs& args);

// Any n. n <= kSmallBatch is LinearSmall; else blocks of rows are widened to fp32 in `scratch` and multiplied by BLAS.
// There y[t, o] does not depend on the range if its ends are multiples of kLinearRowBlock (or `out`).
// `scratch` holds LinearScratchSize(n, in) floats, one per concurrent call; unused for fp32.
int64_t LinearScratchSize(int64_t n, int64_t in);
void Linear(const Fp32Weights& weights, const LinearArgs& args);
void Linear(const Bf16Weights& weights, const LinearArgs& args, float* scratch);
void Linear(const Int8Weights& weights, const LinearArgs& args, float* scratch);

// C[:, begin..end) = alpha op(A) op(B) + beta C, all row-major; op(A) is [m, k], op(B) is [k, n], C is [m, n]. With
// beta = 0 C is not read. On the calling thread only: while a product runs, OpenBLAS is set to one thread
// (docs/library.md, "BLAS in your process").
struct GemmArgs {
  bool transpose_a = false;  // A is stored [k, m]
  bool transpose_b = false;  // B is stored [n, k]
  int64_t m = 0;
  int64_t k = 0;
  float alpha = 1;
  const float* a = nullptr;
  int64_t a_stride = 0;
  const float* b = nullptr;
  int64_t b_stride = 0;
  float beta = 0;
  float* c = nullptr;
  int64_t c_stride = 0;
  int64_t begin = 0;  // columns of C
  int64_t end = 0;
};
void Gemm(const GemmArgs& args);

// Round to nearest even; NaN stays NaN, overflow gives infinity.
uint16_t Fp32ToBf16(float x);
float Bf16ToFp32(uint16_t x);
void Fp32ToBf16(const float* x, int64_t n, uint16_t* out);
void Bf16ToFp32(const uint16_t* x, int64_t n, float* out);

// One row of `in` values: scale = absmax / 127 of each group, data = round(x / scale). Error at most scale / 2 (plus
// rounding) a value. A group of zeros has scale 0. Fails on values that are not finite.
Status QuantizeInt8(const float* x, int64_t in, int64_t group, int8_t* data, float* scales);

// Rows [begin, end) widened to fp32, densely into out[end - begin, in].
void DequantizeRows(const Bf16Weights& weights, int64_t in, int64_t begin, int64_t end, float* out);
void DequantizeRows(const Int8Weights& weights, int64_t in, int64_t begin, int64_t end, float* out);

}  // namespace tensorcache
