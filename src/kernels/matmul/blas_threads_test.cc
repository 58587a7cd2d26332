// The number of threads that the host process gave BLAS is the host's.
#include "kernels/matmul/blas_threads.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "tensorcache/kernels/matmul.h"

extern "C" {
__attribute__((weak)) int openblas_get_parallel(void);
__attribute__((weak)) int openblas_get_num_threads(void);
__attribute__((weak)) void openblas_set_num_threads(int threads);
}

namespace tensorcache {
namespace {

class BlasThreads : public ::testing::Test {
 protected:
  void SetUp() override {
    if (openblas_get_parallel == nullptr || openblas_get_parallel() == 0) GTEST_SKIP() << "no OpenBLAS with threads";
    before_ = openblas_get_num_threads();
  }
  void TearDown() override {
    if (before_ > 0) openblas_set_num_threads(before_);
  }

  int before_ = 0;
};

void SomeProducts() {
  constexpr int64_t n = 96;
  const std::vector<float> a(n * n, 1.0f);
  std::vector<float> c(n * n);
  for (int i = 0; i < 20; ++i) {
    Gemm({.m = n,
          .k = n,
          .a = a.data(),
          .a_stride = n,
          .b = a.data(),
          .b_stride = n,
          .c = c.data(),
          .c_stride = n,
          .begin = 0,
          .end = n});
    ASSERT_EQ(c[n * n - 1], static_cast<float>(n));
  }
}

TEST_F(BlasThreads, ProductsLeaveTheSettingOfTheHost) {
  openblas_set_num_threads(3);
  SomeProducts();
  EXPECT_EQ(openblas_get_num_threads(), 3);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back(SomeProducts);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(openblas_get_num_threads(), 3);
}

TEST_F(BlasThreads, OneThreadFromTheFirstToTheLast) {
  if (openblas_get_parallel() != 1) GTEST_SKIP() << "with OpenMP each thread has a setting of its own";
  openblas_set_num_threads(3);
  {
    const BlasOnOneThread first;
    EXPECT_EQ(openblas_get_num_threads(), 1);
    {
      const BlasOnOneThread second;
      EXPECT_EQ(openblas_get_num_threads(), 1);
    }
    EXPECT_EQ(openblas_get_num_threads(), 1);
  }
  EXPECT_EQ(openblas_get_num_threads(), 3);
}

TEST_F(BlasThreads, WhatTheHostSetsMeanwhileStays) {
  if (openblas_get_parallel() != 1) GTEST_SKIP() << "with OpenMP each thread has a setting of its own";
  openblas_set_num_threads(3);
  {
    const BlasOnOneThread product;
    openblas_set_num_threads(2);
  }
  EXPECT_EQ(openblas_get_num_threads(), 2);
}

}  // namespace
}  // namespace tensorcache
