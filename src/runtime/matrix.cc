#include "runtime/matrix.h"

#include <fmt/format.h>

#include <atomic>

#include "core/check.h"
#include "core/tensor_floats.h"

namespace tensorcache::runtime {
namespace {

constexpr int64_t kInt8Group = 128;

bool IsAligned(const TensorRef& tensor) {
  return reinterpret_cast<uintptr_t>(tensor.data.data()) % static_cast<uintptr_t>(DTypeBytes(tensor.dtype)) == 0;
}

// Calls f(row, floats) for every row of the parts side by side.
template <class F>
void ForEachRow(std::span<const MatrixPart> parts, int64_t out, int64_t in, ThreadPool& pool, F f) {
  pool.ParallelFor(out, 16, [&](int64_t begin, int64_t end, int) {
    std::vector<float> row(static_cast<size_t>(in));
    for (int64_t o = begin; o < end; ++o) {
      float* at = row.data();
      for (const MatrixPart& part : parts) {
        const int64_t columns = part.tensor.shape[1];
        ReadFloats(part.tensor, o * columns, columns, at);
        if (part.factor != 1) {
          for (int64_t i = 0; i < columns; ++i) at[i] *= part.factor;
        }
        at += columns;
      }
      f(o, row.data());
    }
  });
}

}  // namespace

Result<Matrix> Matrix::Make(std::span<const MatrixPart> parts, WeightType type, ThreadPool& pool) {
  Matrix m;
  for (const MatrixPart& part : parts) {
    TC_CHECK(part.tensor.shape.size() == 2 && part.tensor.shape[0] == parts[0].tensor.shape[0]);
    TC_RETURN_IF_ERROR(CheckIsFloat(part.name, part.tensor));
    m.in_ += part.tensor.shape[1];
  }
  m.out_ = parts[0].tensor.shape[0];
  const int64_t numbers = m.out_ * m.in_;
  const bool stays = parts.size() == 1 && parts[0].factor == 1 && IsAligned(parts[0].tensor);
  const TensorRef& first = parts[0].tensor;
  if (type == WeightType::kFp32) {
    const auto* data = reinterpret_cast<const float*>(first.data.data());
    if (!stays || first.dtype != DType::kF32) {
      m.data_ = Buffer(numbers * static_cast<int64_t>(sizeof(float)));
      data = m.data_.As<float>();
      ForEachRow(parts, m.out_, m.in_, pool,
                 [&](int64_t o, const float* row) { std::copy(row, row + m.in_, m.data_.As<float>() + o * m.in_); });
    }
    m.weights_ = Fp32Weights{.data = data, .stride = m.in_};
  } else if (type == WeightType::kBf16) {
    const auto* data = reinterpret_cast<const uint16_t*>(first.data.data());
    if (!stays || first.dtype != DType::kBF16) {
      m.data_ = Buffer(numbers * static_cast<int64_t>(sizeof(uint16_t)));
      data = m.data_.As<uint16_t>();
      ForEachRow(parts, m.out_, m.in_, pool,
                 [&](int64_t o, const float* row) { Fp32ToBf16(row, m.in_, m.data_.As<uint16_t>() + o * m.in_); });
    }
    m.weights_ = Bf16Weights{.data = data, .stride = m.in_};
  } else {
    const int64_t groups = Int8Groups(m.in_, kInt8Group);
    m.data_ = Buffer(numbers);
    m.scales_ = Buffer(m.out_ * groups * static_cast<int64_t>(sizeof(float)));
    std::atomic<bool> finite = true;
    ForEachRow(parts, m.out_, m.in_, pool, [&](int64_t o, const float* row) {
      const Status status =
          QuantizeInt8(row, m.in_, kInt8Group, m.data_.As<int8_t>() + o * m.in_, m.scales_.As<float>() + o * groups);
      if (!status.ok()) finite = false;
    });
    if (!finite) return Diverged(fmt::format("tensor '{}' has numbers that are not finite", parts[0].name));
    m.weights_ = Int8Weights{.data = m.data_.As<int8_t>(),
                             .stride = m.in_,
                             .scales = m.scales_.As<float>(),
                             .scale_stride = groups,
                             .group = kInt8Group};
  }
  return m;
}

int64_t Matrix::bytes() const {
  constexpr int64_t kBytes[] = {4, 2, 1};
  return out_ * in_ * kBytes[weights_.index()] + scales_.bytes();
}

void Matrix::Multiply(const LinearArgs& args, float* scratch) const {
  if (const auto* fp32 = std::get_if<Fp32Weights>(&weights_)) return Linear(*fp32, args);
  if (const auto* bf16 = std::get_if<Bf16Weights>(&weights_)) return Linear(*bf16, args, scratch);
  Linear(std::get<Int8Weights>(weights_), args, scratch);
}

}  // namespace tensorcache::runtime
