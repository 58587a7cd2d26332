// The products that go through BLAS.
#include <cblas.h>

#include <algorithm>

#include "core/check.h"
#include "kernels/matmul/blas_threads.h"
#include "tensorcache/kernels/matmul.h"

namespace tensorcache {
namespace {

blasint Dim(int64_t x) {
  TC_CHECK(x >= 0 && x <= INT32_MAX);
  return static_cast<blasint>(x);
}

// BLAS wants a leading dimension of at least 1 even for empty matrices.
blasint LeadingDim(int64_t x) { return std::max<blasint>(1, Dim(x)); }

// y[t, begin + r] = sum_i x[t, i] w[r, i], r < rows
void MultiplyBlock(const LinearArgs& args, const float* w, int64_t w_stride, int64_t begin, int64_t rows) {
  Gemm({.transpose_b = true,
        .m = args.n,
        .k = args.in,
        .a = args.x,
        .a_stride = args.x_stride,
        .b = w,
        .b_stride = w_stride,
        .c = args.y + begin,
        .c_stride = args.y_stride,
        .begin = 0,
        .end = rows});
}

// Calls body(begin, rows) for the blocks of [args.begin, args.end), cut at multiples of kLinearRowBlock.
template <class Body>
void ForEachFeatureBlock(const LinearArgs& args, const Body& body) {
  for (int64_t begin = args.begin; begin < args.end;) {
    const int64_t end = std::min(args.end, (begin / kLinearRowBlock + 1) * kLinearRowBlock);
    body(begin, end - begin);
    begin = end;
  }
}

template <class Weights>
void LinearThroughScratch(const Weights& weights, const LinearArgs& args, float* scratch) {
  ForEachFeatureBlock(args, [&](int64_t begin, int64_t rows) {
    DequantizeRows(weights, args.in, begin, begin + rows, scratch);
    MultiplyBlock(args, scratch, args.in, begin, rows);
  });
}

}  // namespace

void Gemm(const GemmArgs& args) {
  TC_CHECK(0 <= args.begin && args.begin <= args.end);
  if (args.m == 0 || args.begin == args.end) return;
  const BlasOnOneThread on_one_thread;
  const float* b = args.b + args.begin * (args.transpose_b ? args.b_stride : 1);
  cblas_sgemm(CblasRowMajor, args.transpose_a ? CblasTrans : CblasNoTrans, args.transpose_b ? CblasTrans : CblasNoTrans,
              Dim(args.m), Dim(args.end - args.begin), Dim(args.k), args.alpha, args.a, LeadingDim(args.a_stride), b,
              LeadingDim(args.b_stride), args.beta, args.c + args.begin, LeadingDim(args.c_stride));
}

int64_t LinearScratchSize(int64_t n, int64_t in) { return n <= kSmallBatch ? 0 : kLinearRowBlock * in; }

void Linear(const Fp32Weights& weights, const LinearArgs& args) {
  if (args.n <= kSmallBatch) return LinearSmall(weights, args);
  ForEachFeatureBlock(args, [&](int64_t begin, int64_t rows) {
    MultiplyBlock(args, weights.data + begin * weights.stride, weights.stride, begin, rows);
  });
}

void Linear(const Bf16Weights& weights, const LinearArgs& args, float* scratch) {
  if (args.n <= kSmallBatch) return LinearSmall(weights, args);
  LinearThroughScratch(weights, args, scratch);
}

void Linear(const Int8Weights& weights, const LinearArgs& args, float* scratch) {
  if (args.n <= kSmallBatch) return LinearSmall(weights, args);
  LinearThroughScratch(weights, args, scratch);
}

}  // namespace tensorcache
