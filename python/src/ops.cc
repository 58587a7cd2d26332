// The kernels for tensorcache.torch, on pointers: tensors stay what the Python files make of them, and nothing here knows torch.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "arguments.h"
#include "core/thread_pool.h"
#include "module.h"
#include "tensorcache/kernels/memory_scan.h"
#include "tensorcache/kernels/window_attention.h"

namespace tensorcache::python {
namespace {

using nb::literals::operator""_a;

// Address, and strides of batch, head and token in numbers; none: no array.
using View = std::optional<std::tuple<uintptr_t, int64_t, int64_t, int64_t>>;

template <class Real>
Rows<Real> RowsOf(const View& view) {
  if (!view) return {};
  const auto [address, batch, head, token] = *view;
  return {.data = reinterpret_cast<Real*>(address), .batch = batch, .head = head, .token = token};
}

float* PointerOf(const View& view) { return RowsOf<float>(view).data; }

// The threads of all ops. One op at a time has them; others that are called meanwhile run on their own thread. After a fork,
// whose child has no such threads, new ones are made.
class OpThreads {
 public:
  // body(begin, end) on ranges that cover [0, n).
  template <class Body>
  void Run(int threads, int64_t n, const Body& body) {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (threads <= 1 || n <= 1 || !lock.owns_lock()) return body(0, n);
    if (pool_ == nullptr || asked_ != threads || process_ != getpid()) {
      if (process_ != getpid()) (void)pool_.release();  // its threads are the parent's
      pool_ = std::make_unique<ThreadPool>(threads);
      asked_ = threads;
      process_ = getpid();
    }
    pool_->ParallelFor(n, 1, [&](int64_t begin, int64_t end, int) { body(begin, end); });
  }

 private:
  std::mutex mutex_;
  std::unique_ptr<ThreadPool> pool_;
  int asked_ = 0;
  pid_t process_ = 0;
};

OpThreads& Threads() {
  static auto* const threads = new OpThreads;  // never ended: other threads may be in an op when the process ends
  return *threads;
}

// work(begin, end, scratch) -> Status for ranges of items, each with scratch of its own; of several errors that of the lowest range
// is thrown. With the GIL, which it does without meanwhile.
template <class Work>
void ForEachItemRange(int threads, int64_t items, int64_t scratch_floats, const Work& work) {
  const nb::gil_scoped_release release;
  std::mutex mutex;
  Status error;
  int64_t error_begin = std::numeric_limits<int64_t>::max();
  Threads().Run(threads, items, [&](int64_t begin, int64_t end) {
    // Zeros: what a kernel saves has padding from here, and an op of torch has the same outputs each time.
    const auto scratch = std::make_unique<float[]>(static_cast<size_t>(scratch_floats));
    Status status = work(begin, end, scratch.get());
    if (status.ok()) return;
    const std::lock_guard lock(mutex);
    if (begin > error_begin) return;
    error_begin = begin;
    error = std::move(status);
  });
  Check(std::move(error));
}

ScanMode ModeOf(std::string_view name) {
  if (name == "exact") return ScanMode::kExact;
  if (name == "chunk_start") return ScanMode::kChunkStart;
  if (name == "chunk_mean") return ScanMode::kChunkMean;
  throw StatusError(InvalidArgument("memory_scan: mode is '" + std::string(name) +
                                    "'; it can be one of 'exact', 'chunk_start', 'chunk_mean'"));
}

// B, H, G, T, Dk, Dv, lag, past, rule, mode, chunk
using ScanSizes = std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, std::string,
                             std::string, int64_t>;

// Checked.
MemoryScanShape ShapeOf(const ScanSizes& sizes) {
  const auto& [B, H, G, T, Dk, Dv, lag, past, rule, mode, chunk] = sizes;
  const MemoryScanShape shape{.B = B,
                              .H = H,
                              .G = G,
                              .T = T,
                              .Dk = Dk,
                              .Dv = Dv,
                              .lag = lag,
                              .past = past,
                              .rule = ParseName<WriteRule>("memory_scan: rule", rule),
                              .mode = ModeOf(mode),
                              .chunk = chunk};
  Check(ValidateMemoryScan(shape));
  return shape;
}

MemoryWrites<const float> WritesOf(const std::vector<View>& views, size_t first) {
  return {.k = RowsOf<const float>(views.at(first)),
          .v = RowsOf<const float>(views.at(first + 1)),
          .log_decay = RowsOf<const float>(views.at(first + 2)),
          .write_strength = RowsOf<const float>(views.at(first + 3))};
}

MemoryWrites<float> WriteGradientsOf(const std::vector<View>& views, size_t first) {
  return {.k = RowsOf<float>(views.at(first)),
          .v = RowsOf<float>(views.at(first + 1)),
          .log_decay = RowsOf<float>(views.at(first + 2)),
          .write_strength = RowsOf<float>(views.at(first + 3))};
}

MemoryPast<const float> PastOf(const std::vector<View>& views, size_t first, int64_t tokens) {
  MemoryPast<const float> past;
  static_cast<MemoryWrites<const float>&>(past) = WritesOf(views, first);
  past.capacity = tokens;
  return past;
}

// q; k, v, log-decay, strength of the block; the same of the past; initial; reads, final state, saved
void ScanForward(const ScanSizes& sizes, const std::vector<View>& views, int threads) {
  const MemoryScanShape shape = ShapeOf(sizes);
  const MemoryScanForwardArgs<float> args{.shape = shape,
                                          .q = RowsOf<const float>(views.at(0)),
                                          .writes = WritesOf(views, 1),
                                          .past = PastOf(views, 5, shape.past),
                                          .initial = RowsOf<const float>(views.at(9)),
                                          .reads = RowsOf<float>(views.at(10)),
                                          .final_state = RowsOf<float>(views.at(11)),
                                          .saved = PointerOf(views.at(12))};
  ForEachItemRange(
      threads, shape.B * shape.G, MemoryScanScratchFloats(shape),
      [&](int64_t begin, int64_t end, float* scratch) { return MemoryScanForward(args, begin, end, scratch); });
}

// q; block; past; saved; gradients of reads and final state; those that are wanted: q, block, past, initial
void ScanBackward(const ScanSizes& sizes, const std::vector<View>& views, int threads) {
  const MemoryScanShape shape = ShapeOf(sizes);
  const MemoryScanBackwardArgs<float> args{.shape = shape,
                                           .q = RowsOf<const float>(views.at(0)),
                                           .writes = WritesOf(views, 1),
                                           .past = PastOf(views, 5, shape.past),
                                           .saved = PointerOf(views.at(9)),
                                           .d_reads = RowsOf<const float>(views.at(10)),
                                           .d_final = RowsOf<const float>(views.at(11)),
                                           .d_q = RowsOf<float>(views.at(12)),
                                           .d_writes = WriteGradientsOf(views, 13),
                                           .d_past = WriteGradientsOf(views, 17),
                                           .d_initial = RowsOf<float>(views.at(21))};
  ForEachItemRange(
      threads, shape.B * shape.G, MemoryScanBackwardScratchFloats(shape),
      [&](int64_t begin, int64_t end, float* scratch) { return MemoryScanBackward(args, begin, end, scratch); });
}

// B, H, G, T, D, Dv, window (0: unbounded), past, sinks, position
using AttentionSizes =
    std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t>;

WindowAttentionShape ShapeOf(const AttentionSizes& sizes) {
  const auto& [B, H, G, T, D, Dv, window, past, sinks, position] = sizes;
  return {.B = B,
          .H = H,
          .G = G,
          .T = T,
          .D = D,
          .Dv = Dv,
          .W = window == 0 ? kUnboundedWindow : window,
          .P = past,
          .S = sinks,
          .position = position};
}

// q, k, v, past_k, past_v, sink_k, sink_v, q_sink
WindowAttentionArgs<float> AttentionArgs(const AttentionSizes& sizes, const std::vector<View>& views,
                                         std::optional<double> scale) {
  const WindowAttentionShape shape = ShapeOf(sizes);
  return {.shape = shape,
          .q = RowsOf<const float>(views.at(0)),
          .k = RowsOf<const float>(views.at(1)),
          .v = RowsOf<const float>(views.at(2)),
          .past = {.k = RowsOf<const float>(views.at(3)), .v = RowsOf<const float>(views.at(4)), .capacity = shape.P},
          .sink_k = RowsOf<const float>(views.at(5)),
          .sink_v = RowsOf<const float>(views.at(6)),
          .q_sink = RowsOf<const float>(views.at(7)),
          .scale = scale};
}

// The inputs; out, lse
void AttentionForward(const AttentionSizes& sizes, const std::vector<View>& views, std::optional<double> scale,
                      int threads) {
  WindowAttentionArgs<float> args = AttentionArgs(sizes, views, scale);
  args.out = RowsOf<float>(views.at(8));
  args.lse = RowsOf<float>(views.at(9));
  Check(ValidateWindowAttention(args));
  ForEachItemRange(
      threads, args.shape.B * args.shape.G, WindowAttentionScratchFloats(args.shape),
      [&](int64_t begin, int64_t end, float* scratch) { return WindowAttentionForward(args, begin, end, scratch); });
}

// The inputs; out, lse, gradient of out; those of the inputs, of which all but q, k, v may be unwanted
void AttentionBackward(const AttentionSizes& sizes, const std::vector<View>& views, std::optional<double> scale,
                       int threads) {
  const WindowAttentionArgs<float> args = AttentionArgs(sizes, views, scale);
  const WindowAttentionGrads<float> grads{.out = RowsOf<const float>(views.at(8)),
                                          .lse = RowsOf<const float>(views.at(9)),
                                          .dout = RowsOf<const float>(views.at(10)),
                                          .dq = RowsOf<float>(views.at(11)),
                                          .dk = RowsOf<float>(views.at(12)),
                                          .dv = RowsOf<float>(views.at(13)),
                                          .dpast_k = RowsOf<float>(views.at(14)),
                                          .dpast_v = RowsOf<float>(views.at(15)),
                                          .dsink_k = RowsOf<float>(views.at(16)),
                                          .dsink_v = RowsOf<float>(views.at(17)),
                                          .dq_sink = RowsOf<float>(views.at(18))};
  Check(ValidateWindowAttentionBackward(args, grads));
  ForEachItemRange(threads, args.shape.B * args.shape.G, WindowAttentionBackwardScratchFloats(args.shape),
                   [&](int64_t begin, int64_t end, float* scratch) {
                     return WindowAttentionBackward(args, grads, begin, end, scratch);
                   });
}

}  // namespace

void BindOps(nb::module_& module) {
  // For tensorcache.torch alone: they trust their pointers.
  module.def(
      "memory_scan_saved", [](const ScanSizes& sizes) { return MemoryScanSavedFloats(ShapeOf(sizes)); }, "sizes"_a,
      "Numbers that the forward pass keeps for the backward pass. Checks the sizes.");
  module.def("memory_scan_forward", ScanForward, "sizes"_a, "views"_a, "threads"_a, "The memory.");
  module.def("memory_scan_backward", ScanBackward, "sizes"_a, "views"_a, "threads"_a, "Its gradients.");
  module.def("window_attention_forward", AttentionForward, "sizes"_a, "views"_a, "scale"_a.none(), "threads"_a,
             "Attention over the window.");
  module.def("window_attention_backward", AttentionBackward, "sizes"_a, "views"_a, "scale"_a.none(), "threads"_a,
             "Its gradients.");
}

}  // namespace tensorcache::python
