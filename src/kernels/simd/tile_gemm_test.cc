// Tile products and transposes against plain loops, on every target.

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "testing/kernel_testing.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/simd/tile_gemm_test.cc"
#include <hwy/foreach_target.h>

#include "kernels/simd/tile_gemm-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tensorcache {
namespace HWY_NAMESPACE {

// What a triangular shape leaves out. Operands hold zeros there (kLowerA, kUpperA) or results are not looked at.
template <TileShape shape>
bool InA(int64_t i, int64_t k) {
  return shape == TileShape::kLowerA ? k <= i : shape == TileShape::kUpperA ? k >= i : true;
}

template <TileShape shape>
void CheckProduct(int64_t M, int64_t N, int64_t K, bool transposed, TileStore store) {
  SCOPED_TRACE("M=" + std::to_string(M) + " N=" + std::to_string(N) + " K=" + std::to_string(K));
  Rng rng(static_cast<uint64_t>(M * 10000 + N * 100 + K));
  const int64_t NP = TilePadded(N);
  testing::GuardedBuffer a(M * K), b(K * NP), c(M * NP), scale(M);
  a.FillNormal(rng);
  b.FillNormal(rng);
  c.FillNormal(rng);
  scale.FillNormal(rng);
  const int64_t a_row = transposed ? 1 : K, a_col = transposed ? M : 1;
  for (int64_t i = 0; i < M; ++i) {
    for (int64_t k = 0; k < K; ++k) {
      if (!InA<shape>(i, k)) a[i * a_row + k * a_col] = 0;
    }
  }
  const std::vector<float> before(c.data(), c.data() + c.size());
  const float c_scale = 0.75f;
  if (store == TileStore::kSet) c.Poison();
  TileGemm<shape>({M, NP, K}, {a.data(), a_row, a_col}, {b.data(), NP}, {c.data(), NP},
                  {.store = store, .row_scale = scale.data(), .c_scale = c_scale});
  EXPECT_TRUE(c.Intact());
  for (int64_t i = 0; i < M; ++i) {
    for (int64_t j = 0; j < (shape == TileShape::kLowerResult ? std::min(i + 1, N) : N); ++j) {
      double sum = 0, norm = 0;
      for (int64_t k = 0; k < K; ++k) {
        const double term = static_cast<double>(a[i * a_row + k * a_col]) * b[k * NP + j] * scale[i];
        sum += term;
        norm += std::abs(term);
      }
      const double old = before[static_cast<size_t>(i * NP + j)];
      if (store == TileStore::kAdd) sum += c_scale * old;
      if (store == TileStore::kSubtract) sum = old - sum;
      const float expected = static_cast<float>(sum);
      EXPECT_TRUE(testing::WithinNorm(&c[i * NP + j], &expected, 1, norm + std::abs(old), 4 + static_cast<double>(K)))
          << i << " " << j;
    }
  }
}

void CheckAllProducts() {
  for (const int64_t M : {1, 2, 3, 7, 8, 13, 33}) {
    for (const int64_t N : {1, 16, 31, 33, 65}) {
      for (const int64_t K : {1, 5, 33}) {
        for (const TileStore store : {TileStore::kSet, TileStore::kAdd, TileStore::kSubtract}) {
          CheckProduct<TileShape::kFull>(M, N, K, (M + K) % 2 == 0, store);
          CheckProduct<TileShape::kLowerResult>(M, N, K, (M + K) % 2 == 0, store);
        }
      }
    }
    for (const bool transposed : {false, true}) {
      CheckProduct<TileShape::kLowerA>(M, 40, M, transposed, TileStore::kAdd);
      CheckProduct<TileShape::kUpperA>(M, 40, M, transposed, TileStore::kAdd);
    }
  }
}

void CheckTransposes() {
  for (const int64_t rows : {1, 3, 4, 16, 19, 37}) {
    for (const int64_t cols : {1, 4, 7, 16, 33}) {
      Rng rng(3);
      testing::RowBuffer in(1, 1, rows, cols, 3), out(1, 1, cols, rows, 2);
      in.FillNormal(rng);
      TileTranspose(in.Row(0, 0, 0), cols + 3, rows, cols, out.Row(0, 0, 0), rows + 2);
      EXPECT_TRUE(out.PadsIntact());
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t c = 0; c < cols; ++c) ASSERT_EQ(out.Row(0, 0, c)[r], in.Row(0, 0, r)[c]);
      }
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tensorcache
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tensorcache {
namespace {

HWY_EXPORT(CheckAllProducts);
HWY_EXPORT(CheckTransposes);

TEST(TileGemm, ProductsEqualPlainLoops) {
  testing::ForEachTarget([](const std::string&) { HWY_DYNAMIC_DISPATCH(CheckAllProducts)(); });
}

TEST(TileGemm, TransposesEqualPlainLoops) {
  testing::ForEachTarget([](const std::string&) { HWY_DYNAMIC_DISPATCH(CheckTransposes)(); });
}

}  // namespace
}  // namespace tensorcache
#endif  // HWY_ONCE
