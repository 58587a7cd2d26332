#include "kernels/norm/norm_ref.h"

#include <cmath>
#include <limits>
#include <vector>

namespace tensorcache {
namespace {

// h = (x - mean) r of one row, with mean = 0 for RMSNorm.
struct Statistics {
  double mean;
  double r;
};

Statistics LayerStatistics(const float* x, int64_t width, double eps) {
  double mean = 0;
  for (int64_t i = 0; i < width; ++i) mean += x[i];
  mean /= static_cast<double>(width);
  double variance = 0;
  for (int64_t i = 0; i < width; ++i) variance += (x[i] - mean) * (x[i] - mean);
  return {mean, 1 / std::sqrt(variance / static_cast<double>(width) + eps)};
}

Statistics RmsStatistics(const float* x, int64_t width, double eps) {
  double square = 0;
  for (int64_t i = 0; i < width; ++i) square += static_cast<double>(x[i]) * x[i];
  return {0, 1 / std::sqrt(square / static_cast<double>(width) + eps)};
}

template <class StatisticsOf>
void Forward(const NormArgs& args, const StatisticsOf& statistics_of) {
  for (int64_t row = 0; row < args.rows; ++row) {
    const float* x = args.x + row * args.x_stride;
    float* y = args.y + row * args.y_stride;
    const Statistics s = statistics_of(x, args.width, args.eps);
    for (int64_t i = 0; i < args.width; ++i) {
      y[i] = static_cast<float>((x[i] - s.mean) * s.r * args.weight[i] + (args.bias != nullptr ? args.bias[i] : 0.0f));
    }
  }
}

template <class StatisticsOf>
void Backward(const NormBackwardArgs& args, bool centred, const StatisticsOf& statistics_of) {
  std::vector<double> dweight(static_cast<size_t>(args.width)), dbias(dweight.size());
  for (int64_t row = 0; row < args.rows; ++row) {
    const float* x = args.x + row * args.x_stride;
    const float* dy = args.dy + row * args.dy_stride;
    float* dx = args.dx + row * args.dx_stride;
    const Statistics s = statistics_of(x, args.width, args.eps);
    double mean_g = 0, mean_gh = 0;
    for (int64_t i = 0; i < args.width; ++i) {
      const double h = (x[i] - s.mean) * s.r;
      const double g = static_cast<double>(dy[i]) * args.weight[i];
      mean_g += g / static_cast<double>(args.width);
      mean_gh += g * h / static_cast<double>(args.width);
      dweight[static_cast<size_t>(i)] += dy[i] * h;
      dbias[static_cast<size_t>(i)] += dy[i];
    }
    if (!centred) mean_g = 0;
    for (int64_t i = 0; i < args.width; ++i) {
      const double h = (x[i] - s.mean) * s.r;
      const double g = static_cast<double>(dy[i]) * args.weight[i];
      dx[i] = static_cast<float>(s.r * (g - mean_g - h * mean_gh));
    }
  }
  for (int64_t i = 0; i < args.width; ++i) {
    const auto at = static_cast<size_t>(i);
    if (args.dweight != nullptr) args.dweight[i] = static_cast<float>(args.dweight[i] + dweight[at]);
    if (args.dbias != nullptr) args.dbias[i] = static_cast<float>(args.dbias[i] + dbias[at]);
  }
}

}  // namespace

void LayerNormReference(const NormArgs& args) { Forward(args, LayerStatistics); }
void RmsNormReference(const NormArgs& args) { Forward(args, RmsStatistics); }
void LayerNormBackwardReference(const NormBackwardArgs& args) { Backward(args, true, LayerStatistics); }
void RmsNormBackwardReference(const NormBackwardArgs& args) { Backward(args, false, RmsStatistics); }

}  // namespace tensorcache
