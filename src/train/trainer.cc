#include "train/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "core/config.h"
#include "core/json.h"
#include "core/rng.h"
#include "train/ops/distillation.h"
#include "train/ops/linear_cross_entropy.h"

namespace tensorcache::train {
namespace {

constexpr char kCarriedPositions[] = "carried_positions";

// (rows, length) of the batch's rows [first, first + count), int64.
Tensor RowsTensor(const std::vector<int32_t>& values, const data::Batch& batch, int64_t first, int64_t count,
                  at::Device device) {
  const int32_t* begin = values.data() + first * batch.length;
  Tensor rows = at::empty({count, batch.length}, at::kLong);
  std::copy(begin, begin + rows.numel(), rows.mutable_data_ptr<int64_t>());
  return rows.to(device);
}

double CountSupervised(const data::Batch& batch) {
  return static_cast<double>(
      std::count_if(batch.targets.begin(), batch.targets.end(), [](int32_t t) { return t >= 0; }));
}

// A number that differs for every (seed, step, rank): what dropout and routing draw from.
uint64_t NoiseSeed(uint64_t seed, int64_t step, int rank) {
  Rng rng(seed, (uint64_t{0x6e6f697365} << 24) + static_cast<uint64_t>(rank));
  rng.Seek(static_cast<uint64_t>(step) * 2);
  return rng.NextU64();
}

// Whether the cache method has tensors in any layer.
bool LearnsSomething(const ModelConfig& config) {
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    if (!methods::MethodOf(config.cache).Tensors(methods::PlaceOf(config, layer)).empty()) return true;
  }
  return false;
}

// The model at train.init as it was made: with full attention, or the window it was trained with. A memory teaches
// nothing: what it has learned is no part of the model it was added to.
Result<Model> LoadTeacher(const TrainConfig& config, at::Device device) {
  ModelConfig made;
  TC_RETURN_IF_ERROR(ReadConfigFile(PathIn(config.train.init, kConfigFile), &made));
  ModelConfig teaching = config.model;
  teaching.cache = made.cache;
  if (LearnsSomething(teaching)) teaching.cache = {.method = CacheMethod::kFull};
  TC_ASSIGN_OR_RETURN(Model teacher, Model::Create(teaching, {}, device));
  TC_RETURN_IF_ERROR(LoadParameters(config.train.init, teacher, Memories::kMayDiffer));
  return teacher;
}

// A part of a layer's carried state, as train states name it.
std::string CarriedName(size_t layer, const std::string& part) { return fmt::format("carried.{}.{}", layer, part); }

// The parts that a layer's state may have.
std::vector<std::string> PartNames(const ModelConfig& config, size_t layer) {
  std::vector<std::string> names = {"k", "v"};
  const methods::LayerPlace place = methods::PlaceOf(config, static_cast<int64_t>(layer));
  for (const methods::StateArray& array : methods::MethodOf(config.cache).Arrays(place)) names.push_back(array.name);
  return names;
}

Result<int64_t> Number(const TrainState& state, const std::string& key) {
  const auto found = state.texts.find(key);
  int64_t value = 0;
  if (found != state.texts.end()) {
    const std::string& text = found->second;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error == std::errc() && end == text.data() + text.size() && value >= 0) return value;
  }
  return Corrupt(fmt::format("{}: '{}' is missing or not a number", kTrainStateFile, key));
}

}  // namespace

Result<std::unique_ptr<Trainer>> Trainer::Create(const TrainConfig& config,
                                                 std::shared_ptr<const data::BatchSource> source, World* world,
                                                 Start start) {
  if (config.train.batch_size < world->size()) {
    return InvalidArgument(fmt::format("train.batch_size is {}, but {} processes share it; give each at least one row",
                                       config.train.batch_size, world->size()));
  }
  if (source->vocab_size() > config.model.vocab_size) {
    return InvalidArgument(
        fmt::format("vocab_size is {}, but the data has {} tokens; raise it, or set it to 0 to take "
                    "that of the data",
                    config.model.vocab_size, source->vocab_size()));
  }
  at::Device device(config.train.device);
  TC_ASSIGN_OR_RETURN(Model model,
                      Model::Create(config.model, {config.train.seed, config.train.initializer_range}, device));
  if (!config.train.init.empty() && start == Start::kFresh) {
    TC_RETURN_IF_ERROR(LoadParameters(config.train.init, model, Memories::kMayDiffer));
  }
  model.SetTrained(config.train);
  std::optional<Model> teacher;
  if (config.train.distill > 0) {
    TC_ASSIGN_OR_RETURN(teacher, LoadTeacher(config, device));
  }
  return std::unique_ptr<Trainer>(new Trainer(config, std::move(model), std::move(teacher), std::move(source), world));
}

Trainer::Trainer(const TrainConfig& config, Model model, std::optional<Model> teacher,
                 std::shared_ptr<const data::BatchSource> source, World* world)
    : config_(config),
      model_(std::move(model)),
      teacher_(std::move(teacher)),
      source_(std::move(source)),
      world_(world),
      optimizer_(AllParameters(model_.parameters()), config.train) {}

Trainer::Rows Trainer::LocalRows() const {
  const int64_t total = config_.train.batch_size, size = world_->size(), rank = world_->rank();
  const int64_t first = total * rank / size;
  return {first, total * (rank + 1) / size - first};
}

ForwardOptions Trainer::TrainingOptions() const {
  return {.training = true,
          .dropout = config_.train.dropout,
          .write_cost = config_.train.write_cost / static_cast<double>(config_.train.batch_size),
          .dtype = config_.train.dtype == ComputeDtype::kBfloat16 ? at::kBFloat16 : at::kFloat};
}

Tensor Trainer::SummedLoss(const Tensor& hidden, const Tensor& tokens, const Tensor& targets) const {
  const ForwardOptions options = TrainingOptions();
  const auto rows = [&](const Tensor& x) { return x.flatten(0, 1).to(options.dtype); };
  const auto head = [&](const Model& model) { return model.parameters().head.to(options.dtype); };
  const double weight = config_.train.distill;
  Tensor loss;
  if (weight < 1) loss = LinearCrossEntropy(rows(hidden), head(model_), targets.flatten(), options.backend);
  if (!teacher_) return loss;
  Tensor taught;
  {
    const at::NoGradGuard no_grad;
    taught = rows(teacher_->Hidden(tokens, {.dtype = options.dtype, .backend = options.backend}));
  }
  const Tensor divergence = Distillation({.hidden = rows(hidden),
                                          .weight = head(model_),
                                          .teacher_hidden = taught,
                                          .teacher_weight = head(*teacher_),
                                          .targets = targets.flatten(),
                                          .temperature = config_.train.distill_temperature},
                                         options.backend) *
                            weight;
  return loss.defined() ? loss * (1 - weight) + divergence : divergence;
}

Tensor Trainer::RowsLoss(const data::Batch& batch, Rows rows, std::vector<LayerMetrics>* layers) {
  const ForwardOptions options = TrainingOptions();
  const Tensor tokens = RowsTensor(batch.inputs, batch, rows.first, rows.count, model_.device());
  const Tensor targets = RowsTensor(batch.targets, batch, rows.first, rows.count, model_.device());
  return SummedLoss(model_.Hidden(tokens, options, nullptr, layers), tokens, targets);
}

// Rows whose caches hold equally many tokens go through the model together: those that start a document, and those that go
// on with one.
Tensor Trainer::CarriedLoss(const data::Batch& batch, Rows rows, std::vector<LayerMetrics>* layers) {
  const ForwardOptions options = TrainingOptions();
  const CacheConfig& cache = model_.config().cache;
  // All rows may count positions alike, from the start of the run, where only differences of positions matter.
  const bool relative = methods::MethodOf(cache).IsRelative(cache);
  const int64_t start = step() * batch.length;
  carried_.resize(static_cast<size_t>(batch.rows));
  std::map<int64_t, std::vector<int64_t>> groups;  // rows by the position they start from
  for (int64_t row = rows.first; row < rows.first + rows.count; ++row) {
    ModelState& carried = carried_[static_cast<size_t>(row)];
    if (batch.fresh[static_cast<size_t>(row)] != 0) carried = ModelState{.origin = relative ? start : 0};
    groups[carried.position].push_back(row);
  }
  Tensor total;
  for (const auto& [position, chosen] : groups) {
    std::vector<Tensor> tokens, targets;
    std::vector<ModelState> states;
    for (const int64_t row : chosen) {
      tokens.push_back(RowsTensor(batch.inputs, batch, row, 1, model_.device()));
      targets.push_back(RowsTensor(batch.targets, batch, row, 1, model_.device()));
      states.push_back(carried_[static_cast<size_t>(row)]);
    }
    ModelState state = ModelState::Stack(states);
    if (layers != nullptr) layers->clear();
    const Tensor hidden = model_.Hidden(at::cat(tokens), options, &state, layers);
    const Tensor loss = SummedLoss(hidden, at::cat(tokens), at::cat(targets));
    total = total.defined() ? total + loss : loss;
    state.Detach();
    if (relative) {  // a full cache is a full cache: rows of any age are one group from here on
      state.origin = start;
      state.position = batch.length;
    }
    for (size_t i = 0; i < chosen.size(); ++i) {
      carried_[static_cast<size_t>(chosen[i])] = state.Row(static_cast<int64_t>(i));
    }
  }
  return total;
}

double Trainer::LossAndGradients(const data::Batch& batch, double supervised, std::vector<LayerMetrics>* layers) {
  double sum = 0;
  const int64_t parts = config_.train.accumulate;
  for (int64_t part = 0; part < parts; ++part) {
    const int64_t first = batch.rows * part / parts;
    const Rows rows = {first, batch.rows * (part + 1) / parts - first};
    if (rows.count == 0) continue;
    std::vector<LayerMetrics>* wanted = part == 0 ? layers : nullptr;
    const Tensor loss = config_.train.carry_state ? CarriedLoss(batch, rows, wanted) : RowsLoss(batch, rows, wanted);
    (loss / supervised).backward();
    sum += loss.item<double>();
  }
  return sum;
}

Result<StepMetrics> Trainer::Step(bool with_layers) {
  Result<StepMetrics> metrics = TryStep(with_layers);
  if (!metrics.ok()) optimizer_.ClearGradients();
  return metrics;
}

Result<StepMetrics> Trainer::TryStep(bool with_layers) {
  const TrainOptions& train = config_.train;
  const Rows local = LocalRows();
  data::Batch batch;
  TC_RETURN_IF_ERROR(source_->Fill(data::Split::kTrain, step(), local.first, local.count, &batch));
  std::array<double, 1> supervised = {CountSupervised(batch)};
  TC_RETURN_IF_ERROR(world_->AllReduceSum(supervised));
  if (supervised[0] == 0) return InvalidArgument("the data gave a batch without a single token to predict");

  at::manual_seed(NoiseSeed(train.seed, step(), world_->rank()));
  StepMetrics metrics{
      .step = step() + 1, .learning_rate = LearningRate(train, step()), .tokens = train.batch_size * batch.length};
  std::array<double, 1> loss = {};
  std::string why;
  try {
    loss[0] = LossAndGradients(batch, supervised[0], with_layers ? &metrics.layers : nullptr);
  } catch (const DivergedError& error) {  // told to the other processes as a loss that is no number
    loss[0] = NAN;
    why = fmt::format(": {}", error.what());
  }
  TC_RETURN_IF_ERROR(world_->AllReduceSum(loss));
  metrics.loss = loss[0] / supervised[0];
  if (!std::isfinite(metrics.loss)) {
    return Diverged(fmt::format("step {}: the loss is {}{}", metrics.step, metrics.loss, why));
  }
  if (world_->size() > 1) TC_RETURN_IF_ERROR(world_->AllReduceSum(optimizer_.Gradients()));
  metrics.gradient_norm = optimizer_.Step(metrics.learning_rate);
  if (!std::isfinite(metrics.gradient_norm)) {
    return Diverged(fmt::format("step {}: the norm of the gradients is {}", metrics.step, metrics.gradient_norm));
  }
  return metrics;
}

Result<EvalMetrics> Trainer::Evaluate() const {
  const at::NoGradGuard no_grad;
  ForwardOptions options = TrainingOptions();
  options.training = false;
  const Rows local = LocalRows();
  std::array<double, 3> sums = {};  // loss, right, supervised
  try {
    for (int64_t i = 0; i < config_.train.eval_batches; ++i) {
      data::Batch batch;
      TC_RETURN_IF_ERROR(source_->Fill(data::Split::kValid, i, local.first, local.count, &batch));
      const Tensor targets = RowsTensor(batch.targets, batch, 0, batch.rows, model_.device()).flatten();
      const Tensor hidden = model_.Hidden(RowsTensor(batch.inputs, batch, 0, batch.rows, model_.device()), options);
      Tensor best;
      const Tensor nll =
          TokenNll(hidden.flatten(0, 1).to(options.dtype), model_.parameters().head.to(options.dtype), targets, &best);
      sums[0] += nll.sum(at::kDouble).item<double>();
      sums[1] += best.eq(targets).logical_and(targets.ge(0)).sum().item<double>();
      sums[2] += CountSupervised(batch);
    }
  } catch (const DivergedError& error) {
    return Diverged(fmt::format("evaluation after step {}: {}", step(), error.what()));
  }
  TC_RETURN_IF_ERROR(world_->AllReduceSum(sums));
  const double supervised = std::max(sums[2], 1.0);
  return EvalMetrics{
      .loss = sums[0] / supervised, .accuracy = sums[1] / supervised, .tokens = static_cast<int64_t>(sums[2])};
}

std::vector<StoredParameter> Trainer::Parameters() const {
  std::vector<StoredParameter> all = optimizer_.State();
  for (const NamedParameter& parameter : AllParameters(model_.parameters())) {
    if (!parameter.tensor.requires_grad()) all.push_back({parameter.name, parameter.tensor.detach()});
  }
  return all;
}

Result<TrainState> Trainer::Save() {
  TrainState state{.texts = {{"step", std::to_string(step())}}, .tensors = Parameters()};
  if (!carried_.empty()) TC_RETURN_IF_ERROR(SaveCarried(&state));
  return state;
}

Status Trainer::SaveCarried(TrainState* state) {
  const ModelState carried = ModelState::Stack(carried_);
  const Rows local = LocalRows();
  std::vector<double> positions(2 * static_cast<size_t>(config_.train.batch_size));  // position and origin of each row
  for (size_t row = 0; row < carried_.size(); ++row) {
    const size_t at = 2 * (static_cast<size_t>(local.first) + row);
    positions[at] = static_cast<double>(carried_[row].position);
    positions[at + 1] = static_cast<double>(carried_[row].origin);
  }
  TC_RETURN_IF_ERROR(world_->AllReduceSum(positions));
  state->texts[kCarriedPositions] = Json(positions).dump();
  for (size_t i = 0; i < carried.layers.size(); ++i) {
    for (auto [name, rows] : carried.layers[i].Parts()) {
      if (world_->size() > 1) {  // each process adds its rows to zeros
        std::vector<int64_t> shape = rows.sizes().vec();
        shape[0] = config_.train.batch_size;
        const Tensor all = at::zeros(shape, rows.options());
        all.narrow(0, local.first, local.count).copy_(rows);
        TC_RETURN_IF_ERROR(world_->AllReduceSum(std::vector<Tensor>{all}));
        rows = all;
      }
      state->tensors.push_back({CarriedName(i, name), rows});
    }
  }
  return OkStatus();
}

Status Trainer::Restore(const TrainState& state) {
  TC_ASSIGN_OR_RETURN(const int64_t step, Number(state, "step"));
  std::map<std::string_view, Tensor> stored;
  for (const StoredParameter& tensor : state.tensors) stored[tensor.name] = tensor.tensor;
  const std::vector<StoredParameter> mine = Parameters();
  for (const StoredParameter& tensor : mine) {  // all are looked at before one is changed
    const auto found = stored.find(tensor.name);
    if (found == stored.end() || found->second.sizes() != tensor.tensor.sizes()) {
      return Corrupt(fmt::format("{}: tensor '{}' is missing or has another shape; it belongs to another model",
                                 kTrainStateFile, tensor.name));
    }
  }
  const at::NoGradGuard no_grad;
  for (const StoredParameter& tensor : mine) tensor.tensor.copy_(stored[tensor.name]);
  optimizer_.set_updates(step);
  return RestoreCarried(state, stored);
}

Status Trainer::RestoreCarried(const TrainState& state, const std::map<std::string_view, Tensor>& stored) {
  carried_.clear();
  const auto text = state.texts.find(kCarriedPositions);
  if (text == state.texts.end()) return OkStatus();
  TC_ASSIGN_OR_RETURN(const Json positions, ParseJson(text->second, kTrainStateFile));
  const auto is_number = [](const Json& value) { return value.is_number(); };
  if (!positions.is_array() || positions.size() != 2 * static_cast<size_t>(config_.train.batch_size) ||
      !std::all_of(positions.begin(), positions.end(), is_number)) {
    return Corrupt(fmt::format("{}: carries the states of another number of rows", kTrainStateFile));
  }
  ModelState carried;
  carried.layers.resize(model_.parameters().layers.size());
  const Rows local = LocalRows();
  for (size_t i = 0; i < carried.layers.size(); ++i) {
    for (const std::string& name : PartNames(model_.config(), i)) {
      const auto found = stored.find(CarriedName(i, name));
      if (found == stored.end()) continue;
      if (found->second.dim() < 1 || found->second.size(0) != config_.train.batch_size) {
        return Corrupt(fmt::format("{}: carries the states of another number of rows", kTrainStateFile));
      }
      carried.layers[i].Part(name) = found->second.narrow(0, local.first, local.count).to(model_.device());
    }
  }
  for (int64_t row = 0; row < local.count; ++row) {
    carried_.push_back(carried.Row(row));
    const size_t at = 2 * static_cast<size_t>(local.first + row);
    carried_.back().position = static_cast<int64_t>(positions[at].get<double>());
    carried_.back().origin = static_cast<int64_t>(positions[at + 1].get<double>());
  }
  return OkStatus();
}

}  // namespace tensorcache::train
