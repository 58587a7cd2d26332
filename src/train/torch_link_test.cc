// LibTorch and the run half's BLAS in one process: autograd works, and neither library gets the other's routines.
#include <cblas.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <string>

#include "testing/kernel_testing.h"
#include "train/torch.h"

namespace tensorcache {
namespace {

TEST(TorchLinkTest, BackwardOfASmallFunction) {
  const auto x = torch::randn({5, 7}, at::TensorOptions(at::kDouble).requires_grad(true));
  const auto w = torch::randn({7, 3}, at::TensorOptions(at::kDouble).requires_grad(true));
  at::sigmoid(x.matmul(w)).sum().backward();

  const at::NoGradGuard no_grad;
  const auto y = at::sigmoid(x.matmul(w));
  const auto slope = y * (1 - y);  // of the sigmoid, (5, 3)
  EXPECT_TRUE(at::allclose(x.grad(), slope.matmul(w.t()), 1e-12, 1e-12));
  EXPECT_TRUE(at::allclose(w.grad(), x.t().matmul(slope), 1e-12, 1e-12));
}

TEST(TorchLinkTest, SgemmOfBothLibrariesAgrees) {
  for (const int n : {1, 17, 64, 200}) {
    SCOPED_TRACE(n);
    const auto a = torch::randn({n, n});
    const auto b = torch::randn({n, n});
    const auto expected = a.matmul(b).contiguous();
    auto actual = torch::full({n, n}, NAN);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, n, n, n, 1.0f, a.data_ptr<float>(), n, b.data_ptr<float>(),
                n, 0.0f, actual.data_ptr<float>(), n);
    // An element sums n products; each rounding is at most eps/2 of sums bounded by |a| |b|.
    const double magnitude = a.norm(2, 1).max().item<double>() * b.norm(2, 0).max().item<double>();
    EXPECT_TRUE(
        testing::WithinNorm(actual.data_ptr<float>(), expected.data_ptr<float>(), int64_t{n} * n, magnitude, n));
  }
}

// Both libraries export sgemm_; the dynamic linker gives everyone the first one on the link line.
TEST(TorchLinkTest, TorchCallsItsOwnBlas) {
  void* torch = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
  void* own = torch == nullptr ? nullptr : dlsym(torch, "sgemm_");
  Dl_info info;
  if (own == nullptr || dladdr(own, &info) == 0 || std::string(info.dli_fname).find("libtorch") == std::string::npos) {
    GTEST_SKIP() << "this LibTorch has no BLAS inside";
  }
  EXPECT_EQ(dlsym(RTLD_DEFAULT, "sgemm_"), own) << "link tc_torch before the other libraries";
  dlclose(torch);
}

}  // namespace
}  // namespace tensorcache
