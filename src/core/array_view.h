// ArrayView<T, Rank>: a strided array that lives somewhere else.
#pragma once

#include <array>
#include <cstdint>

#include "core/check.h"

namespace tensorcache {

// Sizes and strides count elements, outermost dimension first. Does not own its data. ArrayView<const T, Rank> is the
// read-only view. At() and Row() check their indices; loops that must be fast take Row() and index the pointer.
template <class T, int Rank>
class ArrayView {
  static_assert(Rank >= 1);

 public:
  using Dims = std::array<int64_t, Rank>;

  ArrayView() = default;
  ArrayView(T* data, const Dims& sizes, const Dims& strides) : data_(data), sizes_(sizes), strides_(strides) {
    for (const int64_t size : sizes) TC_CHECK(size >= 0);
  }
  // Contiguous, row-major.
  ArrayView(T* data, const Dims& sizes) : ArrayView(data, sizes, ContiguousStrides(sizes)) {}
  operator ArrayView<const T, Rank>() const {  // NOLINT(google-explicit-constructor)
    return {data_, sizes_, strides_};
  }

  T* data() const { return data_; }
  int64_t size(int dim) const { return sizes_[CheckedDim(dim)]; }
  int64_t stride(int dim) const { return strides_[CheckedDim(dim)]; }
  int64_t elements() const {
    int64_t product = 1;
    for (const int64_t size : sizes_) product *= size;
    return product;
  }

  template <class... Index>
    requires(sizeof...(Index) == Rank)
  T& At(Index... index) const {
    return data_[Offset<Rank>({static_cast<int64_t>(index)...})];
  }

  // The contiguous innermost row at the given outer indices: size(Rank - 1) elements.
  template <class... Index>
    requires(sizeof...(Index) == Rank - 1)
  T* Row(Index... index) const {
    TC_CHECK(strides_[Rank - 1] == 1 || sizes_[Rank - 1] <= 1);
    return data_ + Offset<Rank - 1>({static_cast<int64_t>(index)...});
  }

  // Row-major without gaps. Strides of dimensions of size 1 do not matter; an empty array is contiguous.
  bool IsContiguous() const {
    if (elements() == 0) return true;
    const Dims expected = ContiguousStrides(sizes_);
    for (int dim = 0; dim < Rank; ++dim) {
      if (sizes_[dim] != 1 && strides_[dim] != expected[dim]) return false;
    }
    return true;
  }

 private:
  static Dims ContiguousStrides(const Dims& sizes) {
    Dims strides;
    int64_t stride = 1;
    for (int dim = Rank - 1; dim >= 0; --dim) {
      strides[dim] = stride;
      stride *= sizes[dim];
    }
    return strides;
  }

  static int CheckedDim(int dim) {
    TC_CHECK(dim >= 0 && dim < Rank);
    return dim;
  }

  template <int N>
  int64_t Offset(const std::array<int64_t, N>& index) const {
    int64_t offset = 0;
    for (int dim = 0; dim < N; ++dim) {
      TC_CHECK(index[dim] >= 0 && index[dim] < sizes_[dim]);
      offset += index[dim] * strides_[dim];
    }
    return offset;
  }

  T* data_ = nullptr;
  Dims sizes_{};
  Dims strides_{};
};

}  // namespace tensorcache
