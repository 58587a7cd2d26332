#include "train/tensor_pool.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "train/torch.h"

namespace tensorcache::train {
namespace {

constexpr int64_t kMega = int64_t{1} << 20;

at::Tensor Floats(int64_t count) { return at::empty({count}, at::kFloat); }

TEST(TensorPoolTest, WhatIsFreedIsGivenAgain) {
  PoolTensors();
  for (const int64_t count : {kMega / 16, kMega, 3 * kMega + 7}) {
    const void* first = nullptr;
    {
      const at::Tensor x = Floats(count).fill_(1);
      first = x.const_data_ptr();
      EXPECT_EQ(reinterpret_cast<uintptr_t>(first) % 64, 0U);
    }
    EXPECT_GE(PooledBytes(), count * int64_t{4});
    const at::Tensor again = Floats(count - 5), other = Floats(count);
    EXPECT_EQ(again.const_data_ptr(), first);
    EXPECT_NE(other.const_data_ptr(), first);
    // Neither reaches into the other.
    again.zero_();
    other.fill_(2);
    EXPECT_EQ(again.sum().item<float>(), 0);
    EXPECT_EQ(other.sum(at::kDouble).item<double>(), 2.0 * static_cast<double>(count));
  }
}

TEST(TensorPoolTest, SmallTensorsAreTheSystems) {
  PoolTensors();
  const int64_t before = PooledBytes();
  {
    const at::Tensor x = Floats(100);
  }
  {
    const at::Tensor none = Floats(0);
  }
  EXPECT_EQ(PooledBytes(), before);
}

// Shapes that come once do not pile up.
TEST(TensorPoolTest, WhatIsKeptIsBounded) {
  PoolTensors();
  for (int64_t mega = 1; mega <= 64; ++mega) Floats(mega * kMega).fill_(1);
  EXPECT_LE(PooledBytes(), (2 * 256 + 32 + 64) * kMega);
}

TEST(TensorPoolTest, TensorsOfSeveralThreads) {
  PoolTensors();
  std::vector<std::thread> threads;
  std::vector<double> sums(4);
  for (size_t t = 0; t < sums.size(); ++t) {
    threads.emplace_back([&sums, t] {
      for (int64_t i = 0; i < 200; ++i) {
        std::vector<at::Tensor> held;
        for (int64_t k = 1; k <= 4; ++k) held.push_back(Floats(k * kMega / 32).fill_(static_cast<double>(t)));
        for (const at::Tensor& x : held) sums[t] += x.mean().item<double>();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (size_t t = 0; t < sums.size(); ++t) EXPECT_EQ(sums[t], 800.0 * static_cast<double>(t));
}

}  // namespace
}  // namespace tensorcache::train
