#include "methods/head.h"

#include "methods/rows_math.h"
#include "tensorcache/kernels/rope.h"

namespace tensorcache::methods {

void Rotate(const RotatedArgs& args, float* out) {
  const int64_t T = args.T, D = args.D;
  if (args.rope.cos == nullptr) {
    for (int64_t h = 0; h < args.heads; ++h) {
      for (int64_t t = 0; t < T; ++t) CopyRow(args.rows.At(0, h, t), D, out + (h * T + t) * D);
    }
    return;
  }
  ApplyRope({.in = args.rows,
             .out = {.data = out, .head = T * D, .token = D},
             .heads = args.heads,
             .tokens = T,
             .dims = D,
             .rotary_dims = D,
             .cos = {.data = args.rope.cos, .token = D / 2},
             .sin = {.data = args.rope.sin, .token = D / 2},
             .pairing = args.pairing,
             .inverse = args.inverse});
}

float* Rotated(const RotatedArgs& args, Arena& arena) {
  float* out = arena.Take(args.heads * args.T * args.D);
  Rotate(args, out);
  return out;
}

}  // namespace tensorcache::methods
