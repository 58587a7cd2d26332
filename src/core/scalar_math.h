// Small functions of one number.
#pragma once

#include <cmath>

namespace tensorcache {

template <class Real>
Real Sigmoid(Real x) {
  return 1 / (1 + std::exp(-x));
}

// log(Sigmoid(x)), with all digits where Sigmoid is close to 1.
inline double LogSigmoid(double x) { return -std::log1p(std::exp(-x)); }

// The x whose Sigmoid is p.
inline double Logit(double p) { return std::log(p / (1 - p)); }

}  // namespace tensorcache
