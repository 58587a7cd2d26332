#include <ATen/ATen.h>

int main() { return at::ones({2, 2}).matmul(at::ones({2, 2})).sum().item<float>() == 8.0f ? 0 : 1; }
