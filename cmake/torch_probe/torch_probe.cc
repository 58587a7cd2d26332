// Whether a LibTorch can do what training needs: products, and AdamW in one pass on CPUs, which old ones cannot.
#include <ATen/ATen.h>

int main() {
  std::vector<at::Tensor> parameter = {at::ones({2})}, gradient = {at::ones({2})};
  std::vector<at::Tensor> m = {at::zeros({2})}, v = {at::zeros({2})}, step = {at::ones({})};
  at::_fused_adamw_(parameter, gradient, m, v, {}, step, 0.5, 0.9, 0.99, 0.0, 1e-8, false, false);
  const bool moved = parameter[0].sum().item<float>() < 1.5f;
  return moved && at::ones({2, 2}).matmul(at::ones({2, 2})).sum().item<float>() == 8.0f ? 0 : 1;
}
