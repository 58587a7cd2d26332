// What the fused ops on rows share: rows on torch's threads, and in blocks between products of matrices. items.h has what
// ops on (batch, head) items share.
#pragma once

#include <algorithm>
#include <cstdint>

#include "train/torch.h"

namespace tensorcache::train {

// f(begin, end) for ranges of rows on torch's threads, none with less work than handing it out costs.
template <class F>
void ParallelRows(int64_t rows, int64_t width, const F& f) {
  constexpr int64_t kElements = 8192;
  at::parallel_for(0, rows, std::max<int64_t>(1, kElements / std::max<int64_t>(1, width)), f);
}

// x (..., E) as contiguous rows (N, E); a view if x is contiguous.
inline Tensor AsRows(const Tensor& x) { return x.reshape({-1, x.size(-1)}).contiguous(); }

// Ops with products of matrices take rows in blocks, so that what a kernel reads and writes is still in cache from the
// product before and for the one after. Each block reads the weights and adds to their gradients once more: with fewer
// rows the products lose more than the kernels gain if weights are large.
inline constexpr int64_t kBlockRows = 1024;

// Rows of every block but the last, which may have fewer.
inline int64_t RowsPerBlock(int64_t rows) {
  const int64_t blocks = std::max<int64_t>(1, (rows + kBlockRows - 1) / kBlockRows);
  return (rows + blocks - 1) / blocks;
}

// f(first, count) for each block of rows, in order.
template <class F>
void ForEachRowBlock(int64_t rows, const F& f) {
  const int64_t block = RowsPerBlock(rows);
  for (int64_t first = 0; first < rows; first += block) f(first, std::min(block, rows - first));
}

// out = a weight^T + bias (undefined: none)
inline void Project(const Tensor& a, const Tensor& weight, const Tensor& bias, Tensor& out) {
  bias.defined() ? at::addmm_out(out, bias, a, weight.t()) : at::mm_out(out, a, weight.t());
}

// Room for a sum over so many rows. The first block overwrites it; without rows there is none, and the sum is 0.
inline Tensor SumOver(int64_t rows, at::IntArrayRef sizes, const at::TensorOptions& options) {
  return rows == 0 ? at::zeros(sizes, options) : at::empty(sizes, options);
}

// sum = a^T b for the first block, sum += a^T b for the others.
inline void AddProduct(bool first, const Tensor& a, const Tensor& b, Tensor& sum) {
  first ? at::mm_out(sum, a.t(), b) : sum.addmm_(a.t(), b);
}

// The same with the sums of a's columns.
inline void AddColumns(bool first, const Tensor& a, Tensor& sum) {
  first ? at::sum_out(sum, a, 0) : sum.add_(a.sum(0));
}

}  // namespace tensorcache::train
