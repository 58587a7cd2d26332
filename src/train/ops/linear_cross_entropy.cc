#include "train/ops/linear_cross_entropy.h"

#include "kernels/norm/softmax_cross_entropy.h"
#include "train/ops/autograd.h"
#include "train/ops/chunked_loss.h"
#include "train/ops/row_blocks.h"

namespace tensorcache::train {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

void CheckInputs(const Tensor& hidden, const Tensor& weight, const Tensor& targets) {
  TORCH_CHECK(hidden.dim() == 2 && weight.dim() == 2 && hidden.size(1) == weight.size(1) && weight.size(0) > 0,
              "cross entropy of ", hidden.sizes(), " with an output projection of ", weight.sizes());
  TORCH_CHECK(targets.scalar_type() == at::kLong && targets.dim() == 1 && targets.size(0) == hidden.size(0),
              "cross entropy of ", hidden.size(0), " rows with targets of ", targets.sizes(), " ",
              targets.scalar_type());
  if (!targets.is_cpu()) return;  // gather checks on its own device; looking from here would wait for it
  const Tensor contiguous = targets.contiguous();
  const int64_t* values = contiguous.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < targets.size(0); ++i) {
    TORCH_CHECK(-1 <= values[i] && values[i] < weight.size(0), "target ", values[i], " of row ", i,
                " is not a token of a vocabulary of ", weight.size(0));
  }
}

// Results of rows; undefined: not wanted, but for nll.
struct Results {
  Tensor nll;        // (N)
  Tensor best{};     // (N)
  Tensor dhidden{};  // (N, E), of the sum of nll
  Tensor dweight{};  // (V, E)
};

// Fills `out`, chunk by chunk. hidden (N, E) and targets (N) are contiguous; N > 0.
void FillChunks(const Tensor& hidden, const Tensor& weight, const Tensor& targets, Results& out) {
  const int64_t N = hidden.size(0), V = weight.size(0), chunk = LossChunkRows(N, V);
  const bool gradient = out.dhidden.defined() || out.dweight.defined();
  const Tensor logits = at::empty({chunk, V}, hidden.options());
  float* x = logits.mutable_data_ptr<float>();
  for (int64_t first = 0; first < N; first += chunk) {
    const int64_t rows = std::min(chunk, N - first);
    const Tensor h = hidden.narrow(0, first, rows);
    Tensor chunk_logits = logits.narrow(0, 0, rows);
    at::mm_out(chunk_logits, h, weight.t());
    const int64_t* target = targets.const_data_ptr<int64_t>() + first;
    float* nll = out.nll.mutable_data_ptr<float>() + first;
    int64_t* best = out.best.defined() ? out.best.mutable_data_ptr<int64_t>() + first : nullptr;
    ParallelRows(rows, V, [=](int64_t begin, int64_t end) {
      SoftmaxCrossEntropy({.rows = end - begin,
                           .width = V,
                           .x = x + begin * V,
                           .x_stride = V,
                           .targets = target + begin,
                           .nll = nll + begin,
                           .dx = gradient ? x + begin * V : nullptr,
                           .dx_stride = V,
                           .best = best != nullptr ? best + begin : nullptr});
    });
    if (out.dhidden.defined()) {
      Tensor dh = out.dhidden.narrow(0, first, rows);
      at::mm_out(dh, chunk_logits, weight);
    }
    if (out.dweight.defined()) {
      first == 0 ? at::mm_out(out.dweight, chunk_logits.t(), h) : out.dweight.addmm_(chunk_logits.t(), h);
    }
  }
}

// The loss; dhidden and dweight, if not null, get its gradients.
Tensor FusedLoss(const Tensor& hidden, const Tensor& weight, const Tensor& targets, Tensor* dhidden, Tensor* dweight) {
  const Tensor supervised = RowsWithTarget(targets);
  const int64_t N = hidden.size(0), rows = supervised.size(0);
  if (rows == 0) {
    if (dhidden != nullptr) *dhidden = at::zeros(hidden.sizes(), hidden.options());
    if (dweight != nullptr) *dweight = at::zeros(weight.sizes(), weight.options());
    return at::zeros({}, hidden.options());
  }
  const Tensor h = rows == N ? hidden.contiguous() : hidden.index_select(0, supervised);
  const Tensor t = rows == N ? targets.contiguous() : targets.index_select(0, supervised);
  Results out = {.nll = at::empty({rows}, hidden.options())};
  if (dhidden != nullptr) out.dhidden = at::empty(h.sizes(), h.options());
  if (dweight != nullptr) out.dweight = at::empty(weight.sizes(), weight.options());
  FillChunks(h, weight, t, out);
  if (dweight != nullptr) *dweight = out.dweight;
  if (dhidden != nullptr) {
    *dhidden =
        rows == N ? out.dhidden : at::zeros(hidden.sizes(), hidden.options()).index_copy_(0, supervised, out.dhidden);
  }
  return out.nll.sum(at::kDouble).to(at::kFloat);
}

class FusedLinearCrossEntropy : public torch::autograd::Function<FusedLinearCrossEntropy> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& hidden, const Tensor& weight, const Tensor& targets) {
    Tensor dhidden, dweight;
    const Tensor loss = FusedLoss(hidden, weight, targets, hidden.requires_grad() ? &dhidden : nullptr,
                                  weight.requires_grad() ? &dweight : nullptr);
    KeepGradients(ctx, dhidden, dweight);
    return loss;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    RefuseSecondDerivative();
    auto [dhidden, dweight] = TakeGradients(ctx, grads[0].item<double>());
    return {dhidden, dweight, Tensor()};
  }
};

// (N), float32 or float64. Nothing here waits for the device.
Tensor CompositeNll(const Tensor& logits, const Tensor& targets) {
  const at::ScalarType precision = logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const Tensor log_p = at::log_softmax(logits, -1, precision);
  const Tensor nll = log_p.gather(1, targets.clamp_min(0).unsqueeze(1)).squeeze(1).neg();
  return at::where(targets >= 0, nll, at::zeros({}, nll.options()));
}

Tensor CompositeTokenNll(const Tensor& hidden, const Tensor& weight, const Tensor& targets, Tensor* best) {
  const int64_t N = hidden.size(0), chunk = LossChunkRows(N, weight.size(0));
  Tensor nll = at::empty({N}, hidden.options().dtype(at::kFloat));
  if (best != nullptr) *best = at::empty({N}, targets.options());
  for (int64_t first = 0; first < N; first += chunk) {
    const int64_t rows = std::min(chunk, N - first);
    const Tensor logits = at::linear(hidden.narrow(0, first, rows), weight);
    nll.narrow(0, first, rows).copy_(CompositeNll(logits, targets.narrow(0, first, rows)));
    if (best != nullptr) best->narrow(0, first, rows).copy_(logits.argmax(1));
  }
  return nll;
}

}  // namespace

Tensor LinearCrossEntropy(const Tensor& hidden, const Tensor& weight, const Tensor& targets, Backend backend) {
  CheckInputs(hidden, weight, targets);
  if (!UseFused(backend, {hidden, weight})) return CompositeNll(at::linear(hidden, weight), targets).sum();
  if (NeedsGradient({hidden, weight})) return FusedLinearCrossEntropy::apply(hidden, weight, targets);
  const at::NoGradGuard no_grad;
  return FusedLoss(hidden, weight, targets, nullptr, nullptr);
}

Tensor TokenNll(const Tensor& hidden, const Tensor& weight, const Tensor& targets, Tensor* best) {
  CheckInputs(hidden, weight, targets);
  const at::NoGradGuard no_grad;
  if (!UseFused(Backend::kAuto, {hidden, weight})) return CompositeTokenNll(hidden, weight, targets, best);
  const int64_t N = hidden.size(0);
  const Tensor supervised = RowsWithTarget(targets);
  if (best == nullptr && supervised.size(0) < N) {
    Tensor nll = at::zeros({N}, hidden.options());
    if (supervised.size(0) == 0) return nll;
    Results out = {.nll = at::empty({supervised.size(0)}, hidden.options())};
    FillChunks(hidden.index_select(0, supervised), weight, targets.index_select(0, supervised), out);
    return nll.index_copy(0, supervised, out.nll);
  }
  Results out = {.nll = at::empty({N}, hidden.options())};
  if (best != nullptr) *best = out.best = at::empty({N}, targets.options());
  if (N > 0) FillChunks(hidden.contiguous(), weight, targets.contiguous(), out);
  return out.nll;
}

}  // namespace tensorcache::train
