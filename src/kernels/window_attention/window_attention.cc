#include "tensorcache/kernels/window_attention.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/window_attention/window_attention.cc"
#include <hwy/foreach_target.h>
// After foreach_target.
#include "kernels/window_attention/backward-inl.h"
#include "kernels/window_attention/forward-inl.h"

#if HWY_ONCE
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "kernels/window_attention/tiling.h"

namespace tensorcache {
namespace {

HWY_EXPORT(ForwardItems);
HWY_EXPORT(BackwardItems);

Status Bad(const std::string& what) { return InvalidArgument("window_attention: " + what); }

Status CheckShape(const WindowAttentionShape& n) {
  if (n.B < 0 || n.G < 1 || n.H < 1 || n.H % n.G != 0) {
    return Bad(
        fmt::format("H must be a positive multiple of G, and B >= 0; got B = {}, H = {}, G = {}", n.B, n.H, n.G));
  }
  if (n.T < 0 || n.D < 1 || n.Dv < 1) {
    return Bad(fmt::format("T must be >= 0 and D, Dv >= 1; got T = {}, D = {}, Dv = {}", n.T, n.D, n.Dv));
  }
  if (n.W < 1) return Bad(fmt::format("the window must hold at least the token itself; got W = {}", n.W));
  if (n.S < 0) return Bad(fmt::format("S must be >= 0; got {}", n.S));
  if (n.position < 0 || n.P < 0 || n.P > n.position) {
    return Bad(fmt::format("the past must hold 0 .. position tokens; got P = {}, position = {}", n.P, n.position));
  }
  // So that no index below overflows.
  constexpr int64_t kMost = int64_t{1} << 30;
  for (const int64_t size : {n.B, n.H, n.T, n.D, n.Dv, n.S, n.P, n.position >> 30}) {
    if (size > kMost) return Bad(fmt::format("a size of {} is too large", size));
  }
  return OkStatus();
}

template <class Stored>
Status CheckRing(const KeyValueRing<Stored>& ring, int64_t count, const char* name) {
  if (count == 0) return OkStatus();
  if (!ring.k || !ring.v) return Bad(fmt::format("{} has {} tokens but no keys or values", name, count));
  if (ring.capacity < count || ring.start < 0 || ring.start >= ring.capacity) {
    return Bad(
        fmt::format("{} of {} tokens does not fit capacity {} from slot {}", name, count, ring.capacity, ring.start));
  }
  return OkStatus();
}

Status CheckScale(const std::optional<double>& scale) {
  if (scale && !std::isfinite(*scale)) return Bad("scale must be finite");
  return OkStatus();
}

bool SeesSinks(const WindowAttentionShape& n) { return n.S > 0 && n.T > 0 && n.position + n.T - 1 - n.W >= 0; }

template <class Real>
Status CheckInputs(const WindowAttentionArgs<Real>& args) {
  const WindowAttentionShape& n = args.shape;
  TC_RETURN_IF_ERROR(CheckShape(n));
  TC_RETURN_IF_ERROR(CheckScale(args.scale));
  TC_RETURN_IF_ERROR(CheckRing(args.past, n.P, "the past"));
  if (n.T > 0 && n.B > 0 && (!args.q || !args.k || !args.v)) return Bad("q, k or v is missing");
  if (SeesSinks(n) && (!args.sink_k || !args.sink_v)) return Bad("sinks are visible, but sink_k or sink_v is missing");
  return OkStatus();
}

}  // namespace

template <class Real>
Status ValidateWindowAttention(const WindowAttentionArgs<Real>& args) {
  TC_RETURN_IF_ERROR(CheckInputs(args));
  if (args.shape.T > 0 && args.shape.B > 0 && !args.out) return Bad("out is missing");
  return OkStatus();
}

template <class Real>
Status ValidateWindowAttentionBackward(const WindowAttentionArgs<Real>& args, const WindowAttentionGrads<Real>& grads) {
  TC_RETURN_IF_ERROR(CheckInputs(args));
  if (grads.dq_sink && !args.q_sink) return Bad("dq_sink without q_sink; the sinks' part of the gradient is in dq");
  if (args.shape.T == 0 || args.shape.B == 0) return OkStatus();
  if (!grads.out || !grads.lse || !grads.dout) return Bad("backward needs out, lse and dout");
  if (!grads.dq || !grads.dk || !grads.dv) return Bad("dq, dk or dv is missing");
  return OkStatus();
}

template <class Real, class Stored>
Status ValidateWindowAttentionStep(const WindowAttentionStepArgs<Real, Stored>& args) {
  const WindowAttentionShape& n = args.shape;
  TC_RETURN_IF_ERROR(CheckShape(n));
  TC_RETURN_IF_ERROR(CheckScale(args.scale));
  if (n.T != 1) return Bad(fmt::format("a step has T = 1; got {}", n.T));
  if (n.P >= n.W) return Bad(fmt::format("the ring holds P + 1 = {} tokens, more than W = {}", n.P + 1, n.W));
  TC_RETURN_IF_ERROR(CheckRing(args.ring, n.P + 1, "the ring"));
  if (n.B > 0 && (!args.q || !args.out)) return Bad("q or out is missing");
  if (SeesSinks(n) && (!args.sink_k || !args.sink_v)) return Bad("sinks are visible, but sink_k or sink_v is missing");
  return OkStatus();
}

template Status ValidateWindowAttention(const WindowAttentionArgs<float>&);
template Status ValidateWindowAttention(const WindowAttentionArgs<double>&);
template Status ValidateWindowAttentionBackward(const WindowAttentionArgs<float>&, const WindowAttentionGrads<float>&);
template Status ValidateWindowAttentionBackward(const WindowAttentionArgs<double>&,
                                                const WindowAttentionGrads<double>&);
template Status ValidateWindowAttentionStep(const WindowAttentionStepArgs<float>&);
template Status ValidateWindowAttentionStep(const WindowAttentionStepArgs<double>&);
template Status ValidateWindowAttentionStep(const WindowAttentionStepArgs<float, uint16_t>&);

int64_t WindowAttentionScratchFloats(const WindowAttentionShape& shape) {
  ScratchCarver forward(nullptr), step(nullptr);
  (void)window_attention::ForwardScratch(shape, forward);
  (void)window_attention::StepScratch(shape, step);
  return std::max(forward.floats(), step.floats());
}

int64_t WindowAttentionBackwardScratchFloats(const WindowAttentionShape& shape) {
  ScratchCarver carve(nullptr);
  (void)window_attention::BackwardScratch(shape, carve);
  return carve.floats();
}

Status WindowAttentionForward(const WindowAttentionArgs<float>& args, int64_t begin_item, int64_t end_item,
                              float* scratch) {
  TC_RETURN_IF_ERROR(window_attention::CheckItems(args.shape, begin_item, end_item));
  HWY_DYNAMIC_DISPATCH(ForwardItems)(args, begin_item, end_item, scratch);
  return OkStatus();
}

Status WindowAttentionBackward(const WindowAttentionArgs<float>& args, const WindowAttentionGrads<float>& grads,
                               int64_t begin_item, int64_t end_item, float* scratch) {
  TC_RETURN_IF_ERROR(window_attention::CheckItems(args.shape, begin_item, end_item));
  HWY_DYNAMIC_DISPATCH(BackwardItems)(args, grads, begin_item, end_item, scratch);
  return OkStatus();
}

}  // namespace tensorcache
#endif  // HWY_ONCE
