#include "server/token_scores.h"

#include <algorithm>

#include "core/check.h"
#include "kernels/norm/softmax_cross_entropy.h"

namespace tensorcache::server {

TokenScore ScoreToken(std::span<const float> logits, int32_t token, int64_t top) {
  TC_CHECK(token >= 0 && static_cast<size_t>(token) < logits.size());
  const int64_t target = token;
  float nll = 0;
  const auto width = static_cast<int64_t>(logits.size());
  SoftmaxCrossEntropy(
      {.rows = 1, .width = width, .x = logits.data(), .x_stride = width, .targets = &target, .nll = &nll});
  const float log_sum = nll + logits[static_cast<size_t>(token)];
  const auto logprob = [&](int32_t of) { return std::min(0.0f, logits[static_cast<size_t>(of)] - log_sum); };

  TokenScore score{.token = token, .logprob = logprob(token)};
  const auto likelier = [&](int32_t a, int32_t b) {
    const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  };
  std::vector<int32_t> best;  // sorted; `top` is small
  const size_t wanted = std::min(static_cast<size_t>(std::max<int64_t>(top, 0)), logits.size());
  for (int32_t i = 0; wanted > 0 && i < static_cast<int32_t>(logits.size()); ++i) {
    if (best.size() == wanted && !likelier(i, best.back())) continue;
    if (best.size() == wanted) best.pop_back();
    best.insert(std::upper_bound(best.begin(), best.end(), i, likelier), i);
  }
  for (const int32_t i : best) score.top.emplace_back(i, logprob(i));
  return score;
}

void LogitChanges::Apply(const std::map<int32_t, int64_t>& counts, std::span<float> logits) const {
  for (const auto& [token, value] : bias) logits[static_cast<size_t>(token)] += value;
  if (presence_penalty == 0 && frequency_penalty == 0) return;
  for (const auto& [token, count] : counts) {
    logits[static_cast<size_t>(token)] -=
        static_cast<float>(presence_penalty + frequency_penalty * static_cast<double>(count));
  }
}

}  // namespace tensorcache::server
