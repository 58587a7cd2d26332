// What a server tells about a token beside its text, and what requests change of the logits before one is drawn.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <span>
#include <utility>
#include <vector>

namespace tensorcache::server {

// The model's own probabilities: before temperature, biases and penalties. Natural logs.
struct TokenScore {
  int32_t token = 0;
  float logprob = std::numeric_limits<float>::quiet_NaN();  // NaN: nothing came before that could predict it
  std::vector<std::pair<int32_t, float>> top;               // the most likely tokens, the likeliest first
};

// `top` tokens, at most as many as there are. Of equally likely ones, the lower number comes first, as in Sampler; the
// number that stands for a token is the same, to the last bit, in logprob and in top.
TokenScore ScoreToken(std::span<const float> logits, int32_t token, int64_t top);

// What is taken from or added to logits, as OpenAI has it: of each token of the reply, presence once and frequency as often as
// it came; and the biases.
struct LogitChanges {
  double presence_penalty = 0;
  double frequency_penalty = 0;
  std::vector<std::pair<int32_t, float>> bias;

  bool any() const { return presence_penalty != 0 || frequency_penalty != 0 || !bias.empty(); }
  // `counts`: how often each token of the reply came.
  void Apply(const std::map<int32_t, int64_t>& counts, std::span<float> logits) const;
};

}  // namespace tensorcache::server
