#include "kernels/read_norm/wide_row.h"

#include <cmath>

#include "tensorcache/kernels/read_norm.h"

namespace tensorcache::read_norm {
namespace {

double InverseRoot(const WideRow& row) {
  double square = 0;
  for (int64_t i = 0; i < row.D; ++i) square += static_cast<double>(row.x[i]) * row.x[i];
  const double floor = row.c != nullptr ? static_cast<double>(*row.c) * *row.c : kReadNormFloor;
  const double sum = square / static_cast<double>(row.D) + floor;
  return sum == 0 ? 0 : 1 / std::sqrt(sum);
}

}  // namespace

void WideForward(const WideRow& row, float* y) {
  const double r = InverseRoot(row);
  for (int64_t i = 0; i < row.D; ++i) y[i] = static_cast<float>(row.x[i] * r * row.gamma[i]);
}

double WideBackward(const WideRow& row, const float* d_y, float* d_x, float* d_gamma) {
  const double r = InverseRoot(row);
  double sum = 0;  // of g h
  for (int64_t i = 0; i < row.D; ++i) sum += static_cast<double>(d_y[i]) * row.gamma[i] * (row.x[i] * r);
  const double mean = sum / static_cast<double>(row.D);
  for (int64_t i = 0; i < row.D; ++i) {
    const double h = row.x[i] * r, g = static_cast<double>(d_y[i]) * row.gamma[i];
    if (d_gamma != nullptr) d_gamma[i] += static_cast<float>(d_y[i] * h);
    if (d_x != nullptr) d_x[i] = static_cast<float>(r * (g - h * mean));
  }
  return row.c != nullptr ? -static_cast<double>(*row.c) * r * r * sum : 0;
}

}  // namespace tensorcache::read_norm
