#include "train/train_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "core/config.h"
#include "core/rng.h"
#include "core/statistics.h"
#include "methods/flops.h"
#include "train/attention.h"
#include "train/memory_meter.h"
#include "train/presets.h"
#include "train/trainer.h"

namespace tensorcache::train {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsOf(const std::function<void()>& run) {
  const auto start = Clock::now();
  run();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Random tokens where a preset has text: speed does not depend on what they say, and the bench needs no files.
class RandomSource final : public data::BatchSource {
 public:
  RandomSource(int64_t vocab, int64_t length) : vocab_(vocab), length_(length) {}
  int64_t vocab_size() const override { return vocab_; }
  int64_t length() const override { return length_; }
  Status Fill(data::Split, int64_t step, int64_t first_row, int64_t rows, data::Batch* batch) const override {
    batch->rows = rows;
    batch->length = length_;
    batch->fresh.assign(static_cast<size_t>(rows), 1);
    batch->inputs.clear();
    for (int64_t row = first_row; row < first_row + rows; ++row) {
      Rng rng(static_cast<uint64_t>(step), static_cast<uint64_t>(row));
      for (int64_t t = 0; t < length_; ++t) {
        batch->inputs.push_back(static_cast<int32_t>(rng.Below(static_cast<uint64_t>(vocab_))));
      }
    }
    batch->targets = batch->inputs;
    return OkStatus();
  }

 private:
  int64_t vocab_, length_;
};

struct Method {
  const char* name;
  std::vector<std::string> overrides;
};

const std::vector<Method>& Methods() {
  constexpr const char* kPaper = "cache.tensor_cache.design=paper";
  static const std::vector<Method> methods = {
      {"window", {"cache.method=window"}},
      {"full", {"cache.method=full"}},
      {"streaming_llm", {"cache.method=streaming_llm"}},
      {"infini", {"cache.method=infini"}},
      {"tensor_cache outer", {"cache.method=tensor_cache", kPaper}},
      {"tensor_cache delta", {"cache.method=tensor_cache", kPaper, "cache.tensor_cache.write.rule=delta"}},
      {"tensor_cache wedge", {"cache.method=tensor_cache", kPaper, "cache.tensor_cache.write.rule=wedge"}},
      {"tensor_cache associative", {"cache.method=tensor_cache", "cache.tensor_cache.design=associative"}},
  };
  return methods;
}

constexpr int64_t kGpt2Vocabulary = 50257;

// One preset with one method, ready to step.
struct Candidate {
  const Method* method = nullptr;
  TrainConfig config;
  int64_t supervised = 0;
  std::unique_ptr<World> world;
  std::unique_ptr<Trainer> trainer;
  std::vector<double> seconds;
};

Result<Candidate> Prepare(const std::string& preset, const Method& method, int64_t batch) {
  Candidate made{.method = &method};
  TC_RETURN_IF_ERROR(ReadPresetOrFile(preset, &made.config));
  for (const std::string& assignment : method.overrides) TC_RETURN_IF_ERROR(ApplyOverride(assignment, &made.config));
  TrainConfig& config = made.config;
  if (batch > 0) config.train.batch_size = batch;
  config.train.accumulate = 1;
  std::shared_ptr<const data::BatchSource> source;
  if (const auto task = data::TaskShapeOf(config.data)) {
    TC_ASSIGN_OR_RETURN(source, data::MakeSource(config.data, {.seed = 1, .rows_per_batch = batch}, nullptr));
    made.supervised = std::llround(static_cast<double>(config.train.batch_size) * task->answers);
  } else {
    if (config.model.vocab_size == 0) config.model.vocab_size = kGpt2Vocabulary;
    source = std::make_shared<RandomSource>(config.model.vocab_size, config.model.max_position_embeddings);
    made.supervised = config.train.batch_size * source->length();
  }
  config.model.vocab_size = std::max(config.model.vocab_size, source->vocab_size());
  config.model.max_position_embeddings = source->length();
  TC_ASSIGN_OR_RETURN(made.world, World::Join({}, at::kCPU));
  TC_ASSIGN_OR_RETURN(made.trainer, Trainer::Create(config, source, made.world.get()));
  return made;
}

Status TimeStep(Candidate& candidate) {
  Status status;
  candidate.seconds.push_back(SecondsOf([&] {
    const Result<StepMetrics> metrics = candidate.trainer->Step(false);
    if (!metrics.ok()) status = metrics.status();
  }));
  return status;
}

// Seconds of one large product with all threads.
double TimeSgemm(int64_t* flops) {
  constexpr int64_t kSize = 1536;
  static const Tensor a = at::rand({kSize, kSize}), b = at::rand({kSize, kSize});
  static Tensor c = at::empty({kSize, kSize});
  *flops = 2 * kSize * kSize * kSize;
  return SecondsOf([] { at::mm_out(c, a, b); });
}

TrainBenchRow MakeRow(const std::string& preset, const Candidate& candidate) {
  const ModelConfig& model = candidate.config.model;
  TrainBenchRow row{.preset = preset,
                    .method = candidate.method->name,
                    .rows = candidate.config.train.batch_size,
                    .tokens = model.max_position_embeddings};
  const double seconds = Median(candidate.seconds);
  row.tokens_per_second = static_cast<double>(row.rows * row.tokens) / seconds;
  row.gflops = TrainingFlops(model, {.rows = row.rows, .tokens = row.tokens, .supervised = candidate.supervised}) /
               seconds / 1e9;
  return row;
}

// A step of the largest preset takes many seconds: fewer rows, and only the methods that promise something.
bool IsLarge(const std::string& preset) { return preset == "gpt-130m"; }
int64_t BenchBatch(const std::string& preset) { return IsLarge(preset) ? 2 : 0; }

std::vector<const Method*> BenchMethods(const std::string& preset) {
  std::vector<const Method*> chosen;
  for (const Method& method : Methods()) {
    const std::string_view name = method.name;
    if (!IsLarge(preset) || name == "window" || name == "tensor_cache outer" || name == "tensor_cache delta" ||
        name == "tensor_cache associative") {
      chosen.push_back(&method);
    }
  }
  return chosen;
}

// Forward and backward of a model of one layer, ending in the sum of its output.
double TimeLayer(const Model& model, const Tensor& tokens, Backend backend) {
  const std::vector<NamedParameter> parameters = AllParameters(model.parameters());
  return SecondsOf([&] {
    model.Hidden(tokens, {.training = true, .backend = backend}).sum().backward();
    for (const NamedParameter& parameter : parameters) parameter.tensor.mutable_grad().reset();
  });
}

// What fusing replaces in a layer: attention over the window and, with a memory, its writes and reads, from q, k and v (packed as
// they are projected) to gradients.
double TimeOps(const Model& model, const Tensor& packed, Backend backend) {
  const ModelConfig& config = model.config();
  const int64_t H = config.num_attention_heads, G = config.num_key_value_heads;
  const ForwardOptions options{.training = true, .backend = backend};
  const RopeFrequencies still{.pairs = config.HeadDim() / 2, .hi = {}, .lo = {}};
  const ForwardContext context(config, still, options, 0, 0, packed.size(1), at::kCPU);
  const methods::LayerPlace place = methods::PlaceOf(config, 0);
  const Tensor input = at::randn({packed.size(0), packed.size(1), config.hidden_size});  // rates may be per token
  return SecondsOf([&] {
    const std::vector<Tensor> parts = packed.split_with_sizes({H, G, G}, 2);
    const LayerBlock block{.place = place,
                           .parameters = model.parameters().layers[0].attention,
                           .context = context,
                           .x = input,
                           .heads = {.q = parts[0],
                                     .k = parts[1],
                                     .v = parts[2],
                                     .plain_q = parts[0],
                                     .plain_k = parts[1],
                                     .plain_v = parts[2]}};
    MethodState state;
    const Attended attended = Attend(block, state);
    Tensor sum = attended.local.sum();
    if (attended.reads.defined()) sum = sum + attended.reads.sum();
    sum.backward();
    packed.mutable_grad().reset();
    for (const MethodTensor& learned : block.parameters.of_method) learned.tensor.mutable_grad().reset();
  });
}

}  // namespace

Result<TrainBenchRow> MeasureStepMemory(const std::string& preset, const std::string& method, int64_t batch) {
  StartMeteringMemory();
  for (const Method& known : Methods()) {
    if (known.name != method) continue;
    ResetMemoryPeaks();
    const int64_t before = LiveTensorBytes();
    TC_ASSIGN_OR_RETURN(Candidate candidate, Prepare(preset, known, batch));
    for (int i = 0; i < 2; ++i) TC_RETURN_IF_ERROR(TimeStep(candidate));  // the second with the optimiser's state there
    TrainBenchRow row = MakeRow(preset, candidate);
    row.peak_bytes = PeakTensorBytes() - before;
    row.peak_resident = PeakResidentBytes();
    return row;
  }
  return InvalidArgument(fmt::format("there is no method '{}' to measure", method));
}

Result<std::vector<TrainBenchRow>> BenchTraining(const TrainBenchOptions& options,
                                                 const std::function<void(const TrainBenchRow&)>& on_row) {
  const int64_t batch = options.batch > 0 ? options.batch : BenchBatch(options.preset);
  std::vector<TrainBenchRow> memory;
  const std::vector<const Method*> methods = BenchMethods(options.preset);
  for (const Method* method : methods) {
    TC_ASSIGN_OR_RETURN(TrainBenchRow row, MeasureStepMemory(options.preset, method->name, batch));
    memory.push_back(row);
  }
  // Each method is timed in turn with window and sgemm: at most two models are in memory.
  std::vector<TrainBenchRow> rows;
  TC_ASSIGN_OR_RETURN(Candidate window, Prepare(options.preset, *methods.front(), batch));
  for (size_t i = 0; i < methods.size(); ++i) {
    TC_ASSIGN_OR_RETURN(Candidate candidate, Prepare(options.preset, *methods[i], batch));
    window.seconds.clear();
    std::vector<double> sgemm;
    int64_t flops = 0;
    for (int repeat = 0; repeat <= options.repeats; ++repeat) {
      TC_RETURN_IF_ERROR(TimeStep(window));
      TC_RETURN_IF_ERROR(TimeStep(candidate));
      for (int j = 0; j < 3; ++j) sgemm.push_back(TimeSgemm(&flops));
    }
    window.seconds.erase(window.seconds.begin());  // the first warms up
    candidate.seconds.erase(candidate.seconds.begin());
    TrainBenchRow row = MakeRow(options.preset, candidate);
    row.to_window = Median(window.seconds) / Median(candidate.seconds);
    row.sgemm_gflops = static_cast<double>(flops) / Median(sgemm) / 1e9;
    row.utilisation = row.gflops / row.sgemm_gflops;
    row.peak_bytes = memory[i].peak_bytes;
    row.peak_resident = memory[i].peak_resident;
    row.memory_to_window = static_cast<double>(row.peak_bytes) / static_cast<double>(memory[0].peak_bytes);
    on_row(row);
    rows.push_back(std::move(row));
  }
  return rows;
}

Result<std::vector<FusionRow>> BenchFusion(const std::string& preset, int repeats) {
  std::vector<FusionRow> rows;
  for (const Method* method : BenchMethods(preset)) {
    TrainConfig config;
    TC_RETURN_IF_ERROR(ReadPresetOrFile(preset, &config));
    for (const std::string& assignment : method->overrides) TC_RETURN_IF_ERROR(ApplyOverride(assignment, &config));
    config.model.num_hidden_layers = 1;
    config.model.vocab_size = 64;
    const auto task = data::TaskShapeOf(config.data);
    const int64_t tokens = task ? task->length : config.model.max_position_embeddings;
    const int64_t batch = std::max<int64_t>(1, std::min<int64_t>(config.train.batch_size, 6400 / tokens));
    TC_ASSIGN_OR_RETURN(const Model model, Model::Create(config.model, {}));
    const Tensor input = at::randint(64, {batch, tokens}, at::kLong);
    const ModelConfig& shape = config.model;
    const Tensor packed =
        at::randn({batch, tokens, shape.num_attention_heads + 2 * shape.num_key_value_heads, shape.HeadDim()})
            .mul_(0.3)
            .requires_grad_(true);
    std::array<std::vector<double>, 4> seconds;
    for (int repeat = 0; repeat <= repeats; ++repeat) {
      seconds[0].push_back(TimeOps(model, packed, Backend::kFused));
      seconds[1].push_back(TimeOps(model, packed, Backend::kComposite));
      seconds[2].push_back(TimeLayer(model, input, Backend::kFused));
      seconds[3].push_back(TimeLayer(model, input, Backend::kComposite));
    }
    for (std::vector<double>& values : seconds) values.erase(values.begin());  // the first warms up
    FusionRow row{.preset = preset,
                  .method = method->name,
                  .ops_fused_seconds = Median(seconds[0]),
                  .ops_composite_seconds = Median(seconds[1]),
                  .layer_fused_seconds = Median(seconds[2]),
                  .layer_composite_seconds = Median(seconds[3])};
    row.ops_speedup = row.ops_composite_seconds / row.ops_fused_seconds;
    row.layer_speedup = row.layer_composite_seconds / row.layer_fused_seconds;
    rows.push_back(row);
  }
  return rows;
}

}  // namespace tensorcache::train
