#include "train/ops/memory_scan.h"

#include <array>
#include <utility>
#include <vector>

#include "train/ops/autograd.h"
#include "train/ops/items.h"

namespace tensorcache::train {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kOp = "memory_scan";

// The inputs that may get a gradient, in the order in which autograd knows them.
enum Field {
  kQ,
  kK,
  kV,
  kLogDecay,
  kWriteStrength,
  kPastK,
  kPastV,
  kPastLogDecay,
  kPastWriteStrength,
  kInitial,
  kFields
};

using Needed = std::array<bool, kFields>;
using Gradients = std::array<Tensor, kFields>;

variable_list Tensors(const MemoryScanInputs& in) {
  return {in.q,
          in.k,
          in.v,
          in.log_decay,
          in.write_strength,
          in.past_k,
          in.past_v,
          in.past_log_decay,
          in.past_write_strength,
          in.initial};
}

MemoryScanShape ShapeOf(const MemoryScanInputs& in) {
  return {.B = in.q.size(0),
          .H = in.q.size(2),
          .G = in.k.size(2),
          .T = in.q.size(1),
          .Dk = in.q.size(3),
          .Dv = in.v.size(3),
          .lag = in.lag,
          .past = in.past_k.defined() ? in.past_k.size(2) : 0,
          .rule = in.rule,
          .mode = in.mode,
          .chunk = in.chunk};
}

// Log-decay or write strength: (G), or (B, T, G) and for the past (B, G, P).
void CheckScalars(const char* name, const Tensor& block, const Tensor& past, const MemoryScanShape& s) {
  TORCH_CHECK(block.defined(), kOp, ": ", name, " is missing");
  if (block.dim() == 1) {
    ExpectSizes(kOp, name, block, {s.G});
    TORCH_CHECK(!past.defined(), kOp, ": a ", name, " for each head is also that of the past, which has its own");
    return;
  }
  ExpectSizes(kOp, name, block, {s.B, s.T, s.G});
  TORCH_CHECK(past.defined() || s.past == 0, kOp, ": the past needs a ", name, " for each token");
  if (past.defined()) ExpectSizes(kOp, name, past, {s.B, s.G, s.past});
}

void CheckInputs(const MemoryScanInputs& in) {
  TORCH_CHECK(in.q.dim() == 4 && in.k.dim() == 4 && in.v.dim() == 4, kOp, ": q, k and v have 4 dimensions");
  TORCH_CHECK(in.past_k.defined() == in.past_v.defined(), kOp, ": past keys and values come together");
  const MemoryScanShape s = ShapeOf(in);
  const Status valid = ValidateMemoryScan(s);
  TORCH_CHECK(valid.ok(), valid.message());
  ExpectSizes(kOp, "k", in.k, {s.B, s.T, s.G, s.Dk});
  ExpectSizes(kOp, "v", in.v, {s.B, s.T, s.G, s.Dv});
  if (in.past_k.defined()) ExpectSizes(kOp, "past_k", in.past_k, {s.B, s.G, s.past, s.Dk});
  if (in.past_v.defined()) ExpectSizes(kOp, "past_v", in.past_v, {s.B, s.G, s.past, s.Dv});
  if (in.initial.defined()) ExpectSizes(kOp, "initial", in.initial, {s.B, s.G, s.Dk, s.Dv});
  CheckScalars("log_decay", in.log_decay, in.past_log_decay, s);
  CheckScalars("write_strength", in.write_strength, in.past_write_strength, s);
}

Rows<const float> ScalarRows(const Tensor& x) {
  if (x.dim() == 1) return {.data = x.const_data_ptr<float>(), .head = x.stride(0)};
  return RowsOf<const float>(x, kTokenMajor);
}

MemoryWrites<const float> BlockWrites(const MemoryScanInputs& in) {
  return {.k = RowsOf<const float>(in.k, kTokenMajor),
          .v = RowsOf<const float>(in.v, kTokenMajor),
          .log_decay = ScalarRows(in.log_decay),
          .write_strength = ScalarRows(in.write_strength)};
}

MemoryPast<const float> PastWrites(const MemoryScanInputs& in) {
  MemoryPast<const float> past;
  if (!in.past_k.defined()) return past;
  const auto scalars = [](const Tensor& own, const Tensor& of_head) {
    return own.defined() ? RowsOf<const float>(own, kHeadMajor) : ScalarRows(of_head);
  };
  past.k = RowsOf<const float>(in.past_k, kHeadMajor);
  past.v = RowsOf<const float>(in.past_v, kHeadMajor);
  past.log_decay = scalars(in.past_log_decay, in.log_decay);
  past.write_strength = scalars(in.past_write_strength, in.write_strength);
  past.capacity = in.past_k.size(2);
  return past;
}

// `saved`: MemoryScanSavedFloats numbers, undefined if not wanted.
MemoryScanOutputs Forward(const MemoryScanInputs& in, const Tensor& saved) {
  const MemoryScanShape s = ShapeOf(in);
  MemoryScanOutputs out{.reads = at::empty({s.B, s.T, s.H, s.Dv}, in.q.options()),
                        .final_state = at::empty({s.B, s.G, s.Dk, s.Dv}, in.q.options())};
  const MemoryScanForwardArgs<float> args{.shape = s,
                                          .q = RowsOf<const float>(in.q, kTokenMajor),
                                          .writes = BlockWrites(in),
                                          .past = PastWrites(in),
                                          .initial = RowsOf<const float>(in.initial, kHeadMajor),
                                          .reads = RowsOf<float>(out.reads, kTokenMajor),
                                          .final_state = RowsOf<float>(out.final_state, kHeadMajor),
                                          .saved = saved.defined() ? saved.data_ptr<float>() : nullptr};
  ForEachItemRange(s.B * s.G, MemoryScanScratchFloats(s), [&](int64_t begin, int64_t end, float* scratch) {
    return MemoryScanForward(args, begin, end, scratch);
  });
  return out;
}

// Gradients of log-decay or write strength for each token, which is what the kernel gives.
class ScalarGradient {
 public:
  ScalarGradient(const MemoryScanShape& s, const Tensor& input, bool needed, bool past_needed)
      : past_tokens_(s.past), per_head_(input.dim() == 1), needed_(needed), past_needed_(past_needed) {
    if (needed || past_needed) tokens_ = at::empty({s.B, s.G, s.past + s.T}, input.options());
  }

  Rows<float> BlockRows() const { return needed_ ? RowsOf<float>(Block(), kHeadMajor) : Rows<float>(); }
  Rows<float> PastRows() const {
    return past_needed_ || (needed_ && per_head_) ? RowsOf<float>(Past(), kHeadMajor) : Rows<float>();
  }

  // In the input's sizes; undefined if not needed.
  Tensor OfBlock() const {
    if (!needed_) return {};
    return per_head_ ? tokens_.sum({0, 2}) : Block().transpose(1, 2);
  }
  Tensor OfPast() const { return past_needed_ ? Past() : Tensor(); }

 private:
  Tensor Past() const { return tokens_.narrow(2, 0, past_tokens_); }
  Tensor Block() const { return tokens_.narrow(2, past_tokens_, tokens_.size(2) - past_tokens_); }

  int64_t past_tokens_;
  bool per_head_, needed_, past_needed_;
  Tensor tokens_;  // (B, G, P + T)
};

// d_reads (B, T, H, Dv) and d_final (B, G, Dk, Dv); either may be undefined, which is zero. `in.initial` is not used.
Gradients Backward(const MemoryScanInputs& in, const Tensor& saved, const Needed& needed, const Tensor& d_reads,
                   const Tensor& d_final) {
  const MemoryScanShape s = ShapeOf(in);
  const variable_list tensors = Tensors(in);
  Gradients gradients;
  for (const Field i : {kQ, kK, kV, kPastK, kPastV}) {
    if (needed[i]) gradients[i] = at::empty(tensors[i].sizes(), in.q.options());
  }
  if (needed[kInitial]) gradients[kInitial] = at::empty({s.B, s.G, s.Dk, s.Dv}, in.q.options());
  const ScalarGradient d_log_decay(s, in.log_decay, needed[kLogDecay], needed[kPastLogDecay]);
  const ScalarGradient d_strength(s, in.write_strength, needed[kWriteStrength], needed[kPastWriteStrength]);
  const Tensor d_reads_rows =
      d_reads.defined() ? WithContiguousRows(d_reads) : at::zeros({s.Dv}, in.q.options()).expand({s.B, s.T, s.H, s.Dv});
  const Tensor d_final_rows = WithContiguousRows(d_final);
  const MemoryScanBackwardArgs<float> args{.shape = s,
                                           .q = RowsOf<const float>(in.q, kTokenMajor),
                                           .writes = BlockWrites(in),
                                           .past = PastWrites(in),
                                           .saved = saved.const_data_ptr<float>(),
                                           .d_reads = RowsOf<const float>(d_reads_rows, kTokenMajor),
                                           .d_final = RowsOf<const float>(d_final_rows, kHeadMajor),
                                           .d_q = RowsOf<float>(gradients[kQ], kTokenMajor),
                                           .d_writes = {.k = RowsOf<float>(gradients[kK], kTokenMajor),
                                                        .v = RowsOf<float>(gradients[kV], kTokenMajor),
                                                        .log_decay = d_log_decay.BlockRows(),
                                                        .write_strength = d_strength.BlockRows()},
                                           .d_past = {.k = RowsOf<float>(gradients[kPastK], kHeadMajor),
                                                      .v = RowsOf<float>(gradients[kPastV], kHeadMajor),
                                                      .log_decay = d_log_decay.PastRows(),
                                                      .write_strength = d_strength.PastRows()},
                                           .d_initial = RowsOf<float>(gradients[kInitial], kHeadMajor)};
  ForEachItemRange(s.B * s.G, MemoryScanBackwardScratchFloats(s), [&](int64_t begin, int64_t end, float* scratch) {
    return MemoryScanBackward(args, begin, end, scratch);
  });
  gradients[kLogDecay] = d_log_decay.OfBlock();
  gradients[kPastLogDecay] = d_log_decay.OfPast();
  gradients[kWriteStrength] = d_strength.OfBlock();
  gradients[kPastWriteStrength] = d_strength.OfPast();
  return gradients;
}

class FusedMemoryScan : public torch::autograd::Function<FusedMemoryScan> {
 public:
  // `edges` are the defined ones among Tensors(in): autograd takes no others.
  static variable_list forward(AutogradContext* ctx, at::TensorList /*edges*/, const MemoryScanInputs& in) {
    const Tensor saved = at::empty({MemoryScanSavedFloats(ShapeOf(in))}, in.q.options());
    const MemoryScanOutputs out = Forward(in, saved);
    variable_list to_save = Tensors(in);
    to_save[kInitial] = saved;  // which starts with the initial state
    ctx->save_for_backward(std::move(to_save));
    ctx->saved_data["initial"] = in.initial.defined();
    ctx->saved_data["lag"] = in.lag;
    ctx->saved_data["rule"] = static_cast<int64_t>(in.rule);
    ctx->saved_data["mode"] = static_cast<int64_t>(in.mode);
    ctx->saved_data["chunk"] = in.chunk;
    ctx->set_materialize_grads(false);
    return {out.reads, out.final_state};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& d_outputs) {
    RefuseSecondDerivative();
    const variable_list saved = ctx->get_saved_variables();
    std::array<bool, kFields> present{};
    for (size_t i = 0; i < kFields; ++i) present[i] = saved[i].defined();
    present[kInitial] = ctx->saved_data["initial"].toBool();
    Needed needed{};
    size_t edges = 0;
    for (size_t i = 0; i < kFields; ++i) needed[i] = present[i] && ctx->needs_input_grad(edges++);

    Gradients gradients;
    if (d_outputs[0].defined() || d_outputs[1].defined()) {
      gradients = Backward(SavedInputs(ctx, saved), saved[kInitial], needed, d_outputs[0], d_outputs[1]);
    }
    variable_list result;
    for (size_t i = 0; i < kFields; ++i) {
      if (present[i]) result.push_back(gradients[i]);
    }
    result.emplace_back();  // for the inputs' struct
    return result;
  }

 private:
  static MemoryScanInputs SavedInputs(AutogradContext* ctx, const variable_list& saved) {
    return {.q = saved[kQ],
            .k = saved[kK],
            .v = saved[kV],
            .log_decay = saved[kLogDecay],
            .write_strength = saved[kWriteStrength],
            .past_k = saved[kPastK],
            .past_v = saved[kPastV],
            .past_log_decay = saved[kPastLogDecay],
            .past_write_strength = saved[kPastWriteStrength],
            .lag = ctx->saved_data["lag"].toInt(),
            .rule = static_cast<WriteRule>(ctx->saved_data["rule"].toInt()),
            .mode = static_cast<ScanMode>(ctx->saved_data["mode"].toInt()),
            .chunk = ctx->saved_data["chunk"].toInt()};
  }
};

}  // namespace

MemoryScanOutputs MemoryScan(const MemoryScanInputs& inputs, Backend backend) {
  CheckInputs(inputs);
  MemoryScanInputs in = inputs;
  const variable_list all = Tensors(in);
  if (!UseFused(backend, all)) return MemoryScanComposite(in);
  for (Tensor* x : {&in.q, &in.k, &in.v, &in.past_k, &in.past_v, &in.initial}) *x = WithContiguousRows(*x);
  if (!NeedsGradient(all)) return Forward(in, /*saved=*/Tensor());
  variable_list edges = Tensors(in);
  std::erase_if(edges, [](const Tensor& x) { return !x.defined(); });
  const variable_list out = FusedMemoryScan::apply(at::TensorList(edges), in);
  return {.reads = out[0], .final_state = out[1]};
}

}  // namespace tensorcache::train
