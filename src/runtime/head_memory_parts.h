// What the memories of both methods share: sizes, states, where reads go.
#pragma once

#include "kernels/rows.h"
#include "runtime/head_memory.h"

namespace tensorcache::runtime {

// Sizes of the head's memories; memory z = timescale * slots + slot.
struct Sizes {
  explicit Sizes(const HeadBlock& in)
      : T(in.block.tokens),
        R(in.spec.R()),
        D(in.spec.D()),
        Dv(in.spec.Dv()),
        timescales(in.spec.Timescales()),
        slots(in.spec.Slots()) {}
  int64_t T, R, D, Dv, timescales, slots;
};

inline float* StateOf(const HeadBlock& in, const Sizes& n, int64_t z) {
  return in.arrays.memory.As<float>() + (in.head * in.spec.Memories() + z) * n.D * n.Dv;
}
// Where the head's reads go; if nobody wants them, into the arena.
inline Rows<float> ReadRows(const HeadBlock& in, Arena& arena) {
  const int64_t D = in.spec.D(), T = in.block.tokens, R = in.spec.R();
  if (in.block.reads == nullptr) return {.data = arena.Take(R * T * D), .head = T * D, .token = D};
  return {.data = in.block.reads + in.head * R * D, .head = D, .token = in.block.reads_stride};
}

// Infini-attention's memory; a block of any length.
Status AdvanceInfini(const HeadBlock& in, const HeadRows& rows, Arena& arena);

}  // namespace tensorcache::runtime
