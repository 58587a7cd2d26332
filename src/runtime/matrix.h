// A weight matrix [out, in] in one of the stored types.
#pragma once

#include <cstdint>
#include <span>
#include <variant>

#include "core/buffer.h"
#include "core/thread_pool.h"
#include "runtime/weight_source.h"
#include "tensorcache/kernels/matmul.h"
#include "tensorcache/model.h"

namespace tensorcache::runtime {

// Columns of a matrix: a tensor (out, columns) times a factor.
struct MatrixPart {
  std::string name;
  TensorRef tensor;
  float factor = 1;
};

class Matrix {
 public:
  Matrix() = default;
  // The parts side by side. A single part that is stored in the wanted type stays where it is. kDiverged on numbers that int8
  // cannot hold (not finite).
  static Result<Matrix> Make(std::span<const MatrixPart> parts, WeightType type, ThreadPool& pool);

  int64_t out() const { return out_; }
  int64_t in() const { return in_; }
  // Bytes of all numbers and scales.
  int64_t bytes() const;

  // y[t, o] for t < n and rows o of [begin, end); `scratch` as Linear's.
  void Multiply(const LinearArgs& args, float* scratch) const;

 private:
  int64_t out_ = 0, in_ = 0;
  std::variant<Fp32Weights, Bf16Weights, Int8Weights> weights_;
  Buffer data_, scales_;
};

}  // namespace tensorcache::runtime
