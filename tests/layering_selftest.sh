#!/usr/bin/env bash
# The layering check catches what it should, and only that.
#
#   tests/layering_selftest.sh [TORCH_PROGRAM]     a program that links torch, if the build has one
set -euo pipefail
check="$(dirname "${BASH_SOURCE[0]}")/layering.sh"
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT

# expect passes|fails FILE LINE: whether a tree with this one file passes.
expect() {
  rm -rf "${tree:?}"/*
  mkdir -p "$tree/$(dirname "$2")"
  echo "$3" >"$tree/$2"
  local verdict=passes
  bash "$check" sources "$tree" >/dev/null 2>&1 || verdict=fails
  if [[ $verdict != "$1" ]]; then
    echo "layering selftest: '$3' in $2 $verdict; it should not" >&2
    exit 1
  fi
}

expect passes src/core/a.cc '#include "core/b.h"'
expect passes src/kernels/op/op_test.cc '#include "testing/kernel_testing.h"'
expect passes src/kernels/op/op_testing.h '#include "testing/kernel_testing.h"'
expect passes src/kernels/op/op_bench.cc '#include "bench/driver.h"'
expect passes src/train/a.cc '#include <torch/torch.h>'
expect passes src/experiments/a.cc '#include "train/a.h"'
expect passes apps/tensorcache/a.cc '#include "runtime/a.h"'
expect passes src/runtime/a.cc '#include "tensorcache/kernels/rows.h"'
expect passes include/tensorcache/kernels/op.h '#include "tensorcache/kernels/rows.h"'
expect fails src/core/a.cc '#include "kernels/simd/tile.h"'
expect fails src/core/a.cc '#include "tensorcache/kernels/rows.h"'
expect fails include/tensorcache/a.h '#include "tensorcache/kernels/rows.h"'
expect fails include/tensorcache/kernels/op.h '#include "kernels/simd/tile.h"'
expect fails src/core/a.h '#include <torch/torch.h>'
expect fails src/kernels/op/op.cc '  #  include <ATen/ATen.h>'
expect fails src/kernels/op/op.cc '#include "testing/kernel_testing.h"'
expect fails src/kernels/op/op.cc '#include "../../runtime/model.h"'
expect fails src/runtime/a.cc '#include "c10/util/Half.h"'
expect fails src/runtime/a.cc '#include "train/a.h"'
expect fails src/runtime/a.cc '#include "server/a.h"'
expect fails src/train/a.cc '#include "experiments/a.h"'
expect fails include/tensorcache/a.h '#include "core/check.h"'
expect fails tests/a_test.cc '#include <torch/torch.h>'
expect fails docs/empty.h 'no include at all'
expect fails src/runtime/a.cc $'#include <cstdio>\nvoid F() { std::printf("hello"); }'
expect fails src/runtime/a.cc $'#include <cstdlib>\nvoid F() { std::exit(1); }'
expect fails src/tokenizer/a.h $'#include <iostream>\ninline void F() { std::cerr << 1; }'
expect passes src/runtime/a_test.cc $'#include <cstdio>\nvoid F() { std::printf("hello"); }'
expect passes apps/tensorcache/a.cc $'#include <cstdio>\nvoid F() { std::printf("hello"); }'

if (($#)) && bash "$check" binaries "$1" >/dev/null 2>&1; then
  echo "layering selftest: $1 links torch, and the check did not notice" >&2
  exit 1
fi
echo "layering selftest: passed"
