// The decode step's entry points, apart from the block's because both take long to compile.
#include "tensorcache/kernels/window_attention.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/window_attention/window_attention_step.cc"
#include <hwy/foreach_target.h>
// After foreach_target.
#include "kernels/window_attention/step-inl.h"

#if HWY_ONCE
#include "kernels/window_attention/tiling.h"

namespace tensorcache {
namespace {

HWY_EXPORT(StepItems);
HWY_EXPORT(StepItemsBf16);

}  // namespace

Status WindowAttentionStep(const WindowAttentionStepArgs<float>& args, int64_t begin_item, int64_t end_item,
                           float* scratch) {
  TC_RETURN_IF_ERROR(window_attention::CheckItems(args.shape, begin_item, end_item));
  HWY_DYNAMIC_DISPATCH(StepItems)(args, begin_item, end_item, scratch);
  return OkStatus();
}

Status WindowAttentionStep(const WindowAttentionStepArgs<float, uint16_t>& args, int64_t begin_item, int64_t end_item,
                           float* scratch) {
  TC_RETURN_IF_ERROR(window_attention::CheckItems(args.shape, begin_item, end_item));
  HWY_DYNAMIC_DISPATCH(StepItemsBf16)(args, begin_item, end_item, scratch);
  return OkStatus();
}

}  // namespace tensorcache
#endif  // HWY_ONCE
