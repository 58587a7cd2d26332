#include "kernels/norm/softmax_cross_entropy_ref.h"

#include <cmath>
#include <limits>

namespace tensorcache {

void SoftmaxCrossEntropyReference(const CrossEntropyArgs& args) {
  for (int64_t row = 0; row < args.rows; ++row) {
    const float* x = args.x + row * args.x_stride;
    const int64_t target = args.targets[row];
    double largest = -std::numeric_limits<double>::infinity();
    int64_t best = 0;
    for (int64_t i = 0; i < args.width; ++i) {
      if (x[i] > largest) {
        largest = x[i];
        best = i;
      }
    }
    double sum = 0;
    for (int64_t i = 0; i < args.width; ++i) sum += std::exp(x[i] - largest);
    args.nll[row] = target < 0 ? 0.0f : static_cast<float>(std::log(sum) + largest - x[target]);
    if (args.best != nullptr) args.best[row] = best;
    if (args.dx == nullptr) continue;
    float* dx = args.dx + row * args.dx_stride;
    for (int64_t i = 0; i < args.width; ++i) {
      const double p = std::exp(x[i] - largest) / sum;
      dx[i] = target < 0 ? 0.0f : static_cast<float>(p - (i == target ? 1.0 : 0.0));
    }
  }
}

}  // namespace tensorcache
