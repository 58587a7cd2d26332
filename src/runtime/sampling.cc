// A vocabulary of 50,000 tokens is passed over for every token of the output, so nothing here sorts it. All filters
// keep a prefix of one order (larger logit first, then lower token number), and a histogram over the logits finds the
// few tokens among which the prefix ends.
#include "tensorcache/sampling.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/no_throw.h"
#include "core/ranges.h"
#include "core/rng.h"

namespace tensorcache {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The bits of a float as an integer of the same order, with NaNs beyond the infinities. Compilers vectorise the minima
// and maxima of integers, unlike those of floats.
inline int32_t OrderedBits(float x) {
  const int32_t bits = std::bit_cast<int32_t>(x);
  return bits ^ ((bits >> 31) & std::numeric_limits<int32_t>::max());
}
inline float FromOrderedBits(int32_t ordered) {
  return std::bit_cast<float>(ordered ^ ((ordered >> 31) & std::numeric_limits<int32_t>::max()));
}

struct Range {
  int32_t best_token;  // the first of equals
  float best;
  float worst;  // may be -inf
};

Result<Range> FindRange(std::span<const float> logits) {
  if (logits.empty()) return InvalidArgument("there are no logits to choose a token from");
  int32_t low = std::numeric_limits<int32_t>::max(), high = std::numeric_limits<int32_t>::min();
  for (const float x : logits) {
    low = std::min(low, OrderedBits(x));
    high = std::max(high, OrderedBits(x));
  }
  if (low < OrderedBits(-kInfinity) || high >= OrderedBits(kInfinity)) {
    const auto bad = std::find_if(logits.begin(), logits.end(), [](float x) { return !(x < kInfinity); });
    return Diverged(fmt::format("the logit of token {} is {}; the model's weights or its cache are not finite",
                                bad - logits.begin(), *bad));
  }
  if (high <= OrderedBits(-kInfinity)) return Diverged("no token has a logit above -inf; there is none to choose");
  const float best = FromOrderedBits(high);
  const auto first = std::find(logits.begin(), logits.end(), best);
  return Range{static_cast<int32_t>(first - logits.begin()), best, FromOrderedBits(low)};
}

// `logits`, or a copy in *scratch with the penalty applied.
Result<std::span<const float>> Penalise(const SamplingOptions& options, std::span<const float> logits,
                                        std::span<const int32_t> recent, std::vector<float>* scratch) {
  const auto window = recent.last(std::min(recent.size(), static_cast<size_t>(options.repetition_window)));
  for (const int32_t token : window) {
    if (token < 0 || static_cast<size_t>(token) >= logits.size()) {
      return InvalidArgument(fmt::format("recent token {} is outside the vocabulary of {}", token, logits.size()));
    }
  }
  if (options.repetition_penalty == 1 || window.empty()) return logits;
  scratch->assign(logits.begin(), logits.end());
  // From the original, so that a token that comes twice is penalised once.
  for (const int32_t token : window) {
    const double x = logits[token];
    (*scratch)[token] = static_cast<float>(x > 0 ? x / options.repetition_penalty : x * options.repetition_penalty);
  }
  return std::span<const float>(*scratch);
}

// Below this, exp would be subnormal; the weights of such tokens count as 0.
constexpr double kMinExponent = -708;

// exp(x) for kMinExponent <= x <= 0 (a rounding more is harmless) within 1e-14; exactly 1 for 0. Without a branch or a
// call, so that compilers vectorise the loop around it, which makes it more than twice as fast as std::exp.
//
// x = n ln2 + r with |r| <= ln2/2; the Taylor series of exp(r) up to r^11; 2^n from its exponent bits.
inline double ExpNonPositive(double x) {
  constexpr double kMagic = 0x1.8p52;  // adding it leaves the integer n in the low bits
  constexpr double kLn2High = 0x1.62e42fefa38p-1, kLn2Low = 0x1.ef35793c7673p-45;
  const double shifted = x * 0x1.71547652b82fep0 + kMagic;
  const double n = shifted - kMagic;
  const double r = (x - n * kLn2High) - n * kLn2Low;  // the first product is exact
  const double r2 = r * r, r4 = r2 * r2;
  const double low = (1.0 + r) + r2 * (1.0 / 2 + r * (1.0 / 6));
  const double middle = (1.0 / 24 + r * (1.0 / 120)) + r2 * (1.0 / 720 + r * (1.0 / 5040));
  const double high = (1.0 / 40320 + r * (1.0 / 362880)) + r2 * (1.0 / 3628800 + r * (1.0 / 39916800));
  const double power = std::bit_cast<double>((std::bit_cast<uint64_t>(shifted) + 1023) << 52);
  return (low + r4 * (middle + r4 * high)) * power;
}

}  // namespace

// The tokens still in play, in order of their numbers.
class Sampler::Candidates {
 public:
  // All tokens whose weight at this temperature is not 0.
  void Gather(std::span<const float> logits, const Range& range, double temperature);
  void KeepTopK(size_t k);
  // Sets the weights, which the functions below need: probabilities relative to the best token's.
  void Weigh(double temperature);
  void KeepTopP(double p);
  void KeepMinP(double p);
  // The first token at which the summed weights exceed the `uniform`-th part of all; uniform in [0, 1).
  int32_t Draw(double uniform) const;

 private:
  static constexpr int kBuckets = 4096;

  // Puts the candidates into buckets, the largest logits into the first, and sums the weights in each. Returns the sum
  // of all.
  double FillHistogram();
  // Keeps the shortest prefix whose weights reach `target`. Needs the histogram.
  void KeepPrefix(double target);
  template <class Condition>
  void KeepIf(const Condition& condition);

  float best_ = 0;
  float buckets_per_logit_ = 0;
  std::array<double, kBuckets> histogram_{};
  // The first count_ entries are valid; the vectors keep the size of the vocabulary.
  size_t count_ = 0;
  std::vector<int32_t> tokens_;
  std::vector<float> logits_;
  std::vector<double> weights_;
  std::vector<uint16_t> buckets_;
  std::vector<size_t> boundary_;  // indices of the candidates among which a prefix ends
};

void Sampler::Candidates::Gather(std::span<const float> logits, const Range& range, double temperature) {
  best_ = range.best;
  // A few tokens far below all others, such as masked ones, must not make the buckets wide.
  constexpr float kMaxDistance = 64, kMinDistance = 1e-6f;
  buckets_per_logit_ = kBuckets / std::clamp(range.best - range.worst, kMinDistance, kMaxDistance);
  tokens_.resize(logits.size());
  logits_.resize(logits.size());
  weights_.resize(logits.size());
  buckets_.resize(logits.size());
  const double lowest = range.best + kMinExponent * temperature;
  count_ = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    tokens_[count_] = static_cast<int32_t>(i);
    logits_[count_] = logits[i];
    count_ += logits[i] >= lowest ? 1 : 0;
  }
}

void Sampler::Candidates::KeepTopK(size_t k) {
  if (k >= count_) return;
  std::fill_n(weights_.begin(), count_, 1.0);
  FillHistogram();
  KeepPrefix(static_cast<double>(k));
}

void Sampler::Candidates::Weigh(double temperature) {
  const double best = best_;
  const double inverse = std::min(1 / temperature, std::numeric_limits<double>::max());  // 0 * inf would be NaN
  for (size_t i = 0; i < count_; ++i) weights_[i] = ExpNonPositive((logits_[i] - best) * inverse);
}

void Sampler::Candidates::KeepTopP(double p) {
  const double total = FillHistogram();
  KeepPrefix(p * total);
}

void Sampler::Candidates::KeepMinP(double p) {
  KeepIf([&](size_t i) { return weights_[i] >= p; });
}

double Sampler::Candidates::FillHistogram() {
  histogram_.fill(0);
  for (size_t i = 0; i < count_; ++i) {
    buckets_[i] = static_cast<uint16_t>(std::min((best_ - logits_[i]) * buckets_per_logit_, kBuckets - 1.0f));
    histogram_[buckets_[i]] += weights_[i];
  }
  return std::reduce(histogram_.begin(), histogram_.end());
}

void Sampler::Candidates::KeepPrefix(double target) {
  int last_bucket = 0;
  double sum = 0;
  for (; last_bucket < kBuckets - 1 && sum + histogram_[last_bucket] < target; ++last_bucket) {
    sum += histogram_[last_bucket];
  }
  boundary_.clear();
  for (size_t i = 0; i < count_; ++i) {
    if (buckets_[i] == last_bucket) boundary_.push_back(i);
  }
  if (boundary_.empty()) return;  // by a rounding, all of them do not reach the target
  const auto precedes = [&](size_t a, size_t b) { return logits_[a] != logits_[b] ? logits_[a] > logits_[b] : a < b; };
  // Equal logits, of which there may be many, are sorted already.
  if (!std::is_sorted(boundary_.begin(), boundary_.end(), precedes)) {
    std::sort(boundary_.begin(), boundary_.end(), precedes);
  }
  size_t last = 0;
  for (const size_t i : boundary_) {
    last = i;
    sum += weights_[i];
    if (sum >= target) break;
  }
  const float last_logit = logits_[last];
  KeepIf([&](size_t i) {
    const float logit = logits_[i];
    return (logit > last_logit) | ((logit == last_logit) & (i <= last));  // no branches: they would be mispredicted
  });
}

template <class Condition>
void Sampler::Candidates::KeepIf(const Condition& condition) {
  size_t kept = 0;
  for (size_t i = 0; i < count_; ++i) {
    const size_t is_kept = condition(i) ? 1 : 0;
    tokens_[kept] = tokens_[i];
    logits_[kept] = logits_[i];
    weights_[kept] = weights_[i];
    kept += is_kept;
  }
  count_ = kept;
}

int32_t Sampler::Candidates::Draw(double uniform) const {
  const double target = uniform * std::reduce(weights_.begin(), weights_.begin() + static_cast<ptrdiff_t>(count_));
  double sum = 0;
  for (size_t i = 0; i < count_; ++i) {
    sum += weights_[i];
    if (sum > target) return tokens_[i];
  }
  return tokens_[count_ - 1];  // the two sums round differently
}

Status ValidateSamplingOptions(const SamplingOptions& options) {
  TC_RETURN_IF_ERROR(CheckRange("temperature", options.temperature, 0, 100));
  if (options.top_k < 0) {
    return InvalidArgument(fmt::format("top_k is {}; it must be at least 1, or 0 for all tokens", options.top_k));
  }
  TC_RETURN_IF_ERROR(CheckRange("top_p", options.top_p, 0, 1));
  TC_RETURN_IF_ERROR(CheckRange("min_p", options.min_p, 0, 1));
  TC_RETURN_IF_ERROR(CheckRange("repetition_penalty", options.repetition_penalty, 0.01, 100));
  return CheckRange("repetition_window", options.repetition_window, 0, kMaxRepetitionWindow);
}

Sampler::Sampler(const SamplingOptions& options) : options_(options), candidates_(std::make_unique<Candidates>()) {}
Sampler::Sampler(Sampler&&) noexcept = default;
Sampler& Sampler::operator=(Sampler&&) noexcept = default;
Sampler::~Sampler() = default;

Result<Sampler> Sampler::Create(const SamplingOptions& options) {
  TC_RETURN_IF_ERROR(ValidateSamplingOptions(options));
  return NoThrow("choose tokens", [&]() -> Result<Sampler> { return Sampler(options); });
}

Result<int32_t> Sampler::Sample(std::span<const float> logits, std::span<const int32_t> recent, uint64_t position) {
  return NoThrow("choose a token", [&]() -> Result<int32_t> {
    if (candidates_ == nullptr) return InvalidArgument("a sampler that was moved from");
    TC_ASSIGN_OR_RETURN(const auto penalised, Penalise(options_, logits, recent, &penalised_));
    TC_ASSIGN_OR_RETURN(const Range range, FindRange(penalised));
    if (options_.temperature == 0) return range.best_token;
    candidates_->Gather(penalised, range, options_.temperature);
    if (options_.top_k > 0) candidates_->KeepTopK(static_cast<size_t>(options_.top_k));
    candidates_->Weigh(options_.temperature);
    if (options_.top_p < 1) candidates_->KeepTopP(options_.top_p);
    if (options_.min_p > 0) candidates_->KeepMinP(options_.min_p);
    return candidates_->Draw(Rng(options_.seed, position).UniformDouble());
  });
}

}  // namespace tensorcache
