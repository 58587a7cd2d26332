// What the fused ops on (batch, head) items share: tensors as the kernels see them, and the items on torch's threads.
// row_blocks.h has what ops on rows share.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <type_traits>
#include <utility>

#include "tensorcache/kernels/rows.h"
#include "tensorcache/status.h"
#include "train/ops/backend.h"

namespace tensorcache::train {

// `x`, or a copy of it if the elements of a row are not adjacent. Differentiable.
inline Tensor WithContiguousRows(const Tensor& x) {
  if (!x.defined() || x.dim() == 0 || x.size(-1) <= 1 || x.stride(-1) == 1) return x;
  return x.contiguous();
}

struct RowDims {
  int64_t batch, head, token;
};
inline constexpr RowDims kTokenMajor{.batch = 0, .head = 2, .token = 1};  // (B, T, heads[, D])
inline constexpr RowDims kHeadMajor{.batch = 0, .head = 1, .token = 2};   // (B, heads, tokens[, D])

// `x` must have contiguous rows; an undefined tensor gives none.
template <class Real>
Rows<Real> RowsOf(const Tensor& x, const RowDims& dims) {
  if (!x.defined()) return {};
  Rows<Real> rows{.batch = x.stride(dims.batch), .head = x.stride(dims.head), .token = x.stride(dims.token)};
  if constexpr (std::is_const_v<Real>) {
    rows.data = x.const_data_ptr<std::remove_const_t<Real>>();
  } else {
    rows.data = x.data_ptr<Real>();
  }
  return rows;
}

inline void ExpectSizes(const char* op, const char* name, const Tensor& x, at::IntArrayRef sizes) {
  TORCH_CHECK(x.defined() && x.sizes() == sizes, op, ": ", name, " must have sizes ", sizes, ", not ",
              x.defined() ? x.sizes() : at::IntArrayRef());
}

// Calls work(begin, end, scratch) -> Status for ranges of 0 .. items - 1 on torch's threads, each call with scratch of
// its own, and throws what went wrong after all have ended: of several errors that of the lowest range.
template <class Work>
void ForEachItemRange(int64_t items, int64_t scratch_floats, const Work& work) {
  std::mutex mutex;
  Status error;
  int64_t error_begin = std::numeric_limits<int64_t>::max();
  at::parallel_for(0, items, 1, [&](int64_t begin, int64_t end) {
    const auto scratch = std::make_unique_for_overwrite<float[]>(static_cast<size_t>(scratch_floats));
    Status status = work(begin, end, scratch.get());
    if (status.ok()) return;
    const std::lock_guard lock(mutex);
    if (begin > error_begin) return;
    error_begin = begin;
    error = std::move(status);
  });
  if (error.code() == StatusCode::kDiverged) throw DivergedError(error.message());
  TORCH_CHECK(error.ok(), error.message());
}

}  // namespace tensorcache::train
