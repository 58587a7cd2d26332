// The parts of LibTorch that the train half uses. torch/torch.h would double the time every file takes to compile.
#pragma once

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/generated/variable_factories.h>
#include <torch/csrc/autograd/grad_mode.h>

namespace tensorcache::train {

using at::Tensor;

}  // namespace tensorcache::train
