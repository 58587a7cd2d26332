#include <fmt/format.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "bench/driver.h"
#include "tensorcache/kernels/rope.h"

namespace tensorcache::bench {
namespace {

Row NewRow(const char* op, std::string shape, const char* limit) {
  Row row;
  row.op = op;
  row.shape = std::move(shape);
  row.limit = limit;
  return row;
}

void Apply(Driver& driver, RopePairing pairing, const char* name) {
  constexpr int64_t kHeads = 12, kTokens = 64, kDims = 64;
  constexpr size_t kSize = kHeads * kTokens * kDims;
  const RopeFrequencies frequencies = MakeRopeFrequencies(kDims, 10000).value();
  std::vector<float> x(kSize, 0.5f), y(kSize), cos(kTokens * kDims / 2), sin(cos.size());
  FillRopeTable(frequencies, 1000, kTokens, cos.data(), sin.data());
  const RopeArgs args = {.in = {.data = x.data(), .head = kDims, .token = kHeads * kDims},
                         .out = {.data = y.data(), .head = kDims, .token = kHeads * kDims},
                         .heads = kHeads,
                         .tokens = kTokens,
                         .dims = kDims,
                         .rotary_dims = kDims,
                         .cos = {.data = cos.data(), .token = kDims / 2},
                         .sin = {.data = sin.data(), .token = kDims / 2},
                         .pairing = pairing};
  driver.AddRatioRow(
      NewRow("rope apply", fmt::format("{} T={} H={} D={}", name, kTokens, kHeads, kDims), "copy of the rows"),
      [&] { ApplyRope(args); }, [&] { std::memcpy(y.data(), x.data(), kSize * sizeof(float)); });
}

void Table(Driver& driver) {
  constexpr int64_t kDims = 128, kTokens = 64;
  const RopeFrequencies frequencies = MakeRopeFrequencies(kDims, 10000).value();
  std::vector<float> cos(kTokens * kDims / 2), sin(cos.size()), cos_copy(cos.size()), sin_copy(cos.size());
  driver.AddRatioRow(
      NewRow("rope table", fmt::format("T={} D={}", kTokens, kDims), "copy of the table"),
      [&] { FillRopeTable(frequencies, 10'000'000, kTokens, cos.data(), sin.data()); },
      [&] {
        std::memcpy(cos_copy.data(), cos.data(), cos.size() * sizeof(float));
        std::memcpy(sin_copy.data(), sin.data(), sin.size() * sizeof(float));
      });
}

}  // namespace

void BenchRope(Driver& driver) {
  Apply(driver, RopePairing::kHalfSplit, "half-split");
  Apply(driver, RopePairing::kInterleaved, "interleaved");
  Table(driver);
}

}  // namespace tensorcache::bench
