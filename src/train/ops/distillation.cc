#include "train/ops/distillation.h"

#include "train/ops/autograd.h"
#include "train/ops/chunked_loss.h"

namespace tensorcache::train {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

void CheckInputs(const DistillationInputs& in) {
  TORCH_CHECK(in.hidden.dim() == 2 && in.weight.dim() == 2 && in.hidden.size(1) == in.weight.size(1),
              "distillation of ", in.hidden.sizes(), " with an output projection of ", in.weight.sizes());
  TORCH_CHECK(in.teacher_hidden.dim() == 2 && in.teacher_weight.dim() == 2 &&
                  in.teacher_hidden.size(1) == in.teacher_weight.size(1) &&
                  in.teacher_hidden.size(0) == in.hidden.size(0) && in.teacher_weight.size(0) == in.weight.size(0),
              "distillation of ", in.hidden.sizes(), " by ", in.weight.sizes(), " from a teacher of ",
              in.teacher_hidden.sizes(), " by ", in.teacher_weight.sizes());
  TORCH_CHECK(in.targets.scalar_type() == at::kLong && in.targets.dim() == 1 && in.targets.size(0) == in.hidden.size(0),
              "distillation of ", in.hidden.size(0), " rows with targets of ", in.targets.sizes());
  TORCH_CHECK(in.temperature > 0, "distillation at the temperature ", in.temperature);
}

at::ScalarType Precision(const Tensor& hidden) {
  return hidden.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

// log softmax(hidden weight^T / tau), float32 or float64.
Tensor LogPredictions(const Tensor& hidden, const Tensor& weight, double temperature) {
  return at::log_softmax(at::linear(hidden, weight).to(Precision(hidden)) / temperature, -1);
}

// Adds to a gradient: room is made by the first.
void Accumulate(Tensor product, Tensor& sum) { sum = sum.defined() ? sum.add_(product) : std::move(product); }

// The loss of rows that all count; dhidden (N, E) and dweight, if not null, get its gradients.
Tensor ChunkedLoss(const DistillationInputs& in, Tensor* dhidden, Tensor* dweight) {
  const int64_t N = in.hidden.size(0), chunk = LossChunkRows(N, in.weight.size(0));
  const double tau = in.temperature;
  Tensor loss = at::zeros({}, in.hidden.options().dtype(at::kDouble));
  if (dhidden != nullptr) *dhidden = at::empty(in.hidden.sizes(), in.hidden.options());
  for (int64_t first = 0; first < N; first += chunk) {
    const int64_t rows = std::min(chunk, N - first);
    const Tensor h = in.hidden.narrow(0, first, rows);
    const Tensor log_q = LogPredictions(h, in.weight, tau);
    const Tensor log_p = LogPredictions(in.teacher_hidden.narrow(0, first, rows), in.teacher_weight, tau);
    const Tensor p = log_p.exp();
    loss += (p * (log_p - log_q)).sum(at::kDouble) * (tau * tau);
    // d/dlogits of tau^2 KL(p || softmax(logits / tau)).
    const Tensor dlogits = ((log_q.exp() - p) * tau).to(in.hidden.scalar_type());
    if (dhidden != nullptr) {
      Tensor dh = dhidden->narrow(0, first, rows);
      at::mm_out(dh, dlogits, in.weight);
    }
    if (dweight != nullptr) Accumulate(at::mm(dlogits.t(), h), *dweight);
  }
  if (dweight != nullptr && !dweight->defined()) *dweight = at::zeros(in.weight.sizes(), in.weight.options());
  return loss.to(Precision(in.hidden));
}

class FusedDistillation : public torch::autograd::Function<FusedDistillation> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& hidden, const Tensor& weight,
                        const DistillationInputs& in) {
    Tensor dhidden, dweight;
    const Tensor loss =
        ChunkedLoss(in, hidden.requires_grad() ? &dhidden : nullptr, weight.requires_grad() ? &dweight : nullptr);
    KeepGradients(ctx, dhidden, dweight);
    return loss;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    RefuseSecondDerivative();
    auto [dhidden, dweight] = TakeGradients(ctx, grads[0].item<double>());
    return {dhidden, dweight, Tensor()};
  }
};

}  // namespace

Tensor Distillation(const DistillationInputs& inputs, Backend backend) {
  CheckInputs(inputs);
  DistillationInputs in = inputs;
  const Tensor supervised = RowsWithTarget(in.targets);
  if (supervised.size(0) < in.hidden.size(0)) {
    in.hidden = in.hidden.index_select(0, supervised);
    in.teacher_hidden = in.teacher_hidden.index_select(0, supervised);
  }
  in.teacher_hidden = in.teacher_hidden.detach();
  in.teacher_weight = in.teacher_weight.detach();
  if (backend == Backend::kComposite) {
    const Tensor log_p = LogPredictions(in.teacher_hidden, in.teacher_weight, in.temperature);
    const Tensor log_q = LogPredictions(in.hidden, in.weight, in.temperature);
    return (log_p.exp() * (log_p - log_q)).sum() * (in.temperature * in.temperature);
  }
  if (NeedsGradient({in.hidden, in.weight})) return FusedDistillation::apply(in.hidden, in.weight, in);
  const at::NoGradGuard no_grad;
  return ChunkedLoss(in, nullptr, nullptr);
}

}  // namespace tensorcache::train
