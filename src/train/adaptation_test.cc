// Training that starts from a model which is there: what changes and what stays, low rank, teachers.
#include <gtest/gtest.h>

#include <cmath>

#include "core/config.h"
#include "core/safetensors.h"
#include "data/recall_task.h"
#include "testing/temp_folder.h"
#include "train/model_testing.h"
#include "train/trainer_testing.h"

namespace tensorcache::train {
namespace {

class Adaptation : public ::testing::Test {
 protected:
  void SetUp() override {
    at::set_num_threads(1);
    task_.episodes = 2;
    task_.gap = 8;
    config_.model = SmallConfig();
    config_.model.vocab_size = task_.VocabSize();
    config_.model.max_position_embeddings = task_.Length();
    config_.model.cache = {.method = CacheMethod::kFull, .window = 6};
    ASSERT_TRUE(SaveModel(RandomModel(config_.model), folder_.path()).ok());
    config_.model.cache.method = CacheMethod::kTensorCache;
    // As `tensorcache adapt` has them.
    config_.model.cache.tensor_cache = {
        .address = {.by = MemoryAddress::kContent, .normalize_queries = true, .normalize_keys = true},
        .read = {.zero_output = true}};
    config_.train.init = folder_.path();
    config_.train.batch_size = 4;
    config_.train.eval_batches = 1;
    auto world = World::Join({}, at::kCPU);
    ASSERT_TRUE(world.ok());
    world_ = std::move(world).value();
  }

  std::unique_ptr<Trainer> Make(const TrainConfig& config) {
    auto trainer = Trainer::Create(config, std::move(data::MakeRecallSource(task_, 1)).value(), world_.get());
    EXPECT_TRUE(trainer.ok()) << trainer.status().message();
    return std::move(trainer).value();
  }
  static Tensor LogitsOf(const Model& model) {
    const at::NoGradGuard no_grad;
    return model.Logits(model.Hidden(RandomTokens(model.config(), 2, 30, 5), {}));
  }
  static std::map<std::string, Tensor> Copies(const Model& model) {
    std::map<std::string, Tensor> copies;
    for (const auto& parameter : StoredParameters(model.config(), Merged(model.parameters()))) {
      copies[parameter.name] = parameter.tensor.clone();
    }
    return copies;
  }

  data::RecallConfig task_;
  TrainConfig config_;
  const testing::TempFolder folder_;
  std::unique_ptr<World> world_;
};

TEST_F(Adaptation, StartsAsTheWindowModelToTheLastBit) {
  TrainConfig window = config_;
  window.model.cache.method = CacheMethod::kWindow;
  for (const TrainedParameters parameters : {TrainedParameters::kMemory, TrainedParameters::kLora}) {
    config_.train.parameters = parameters;
    EXPECT_TRUE(at::equal(LogitsOf(Make(config_)->model()), LogitsOf(Make(window)->model())));
  }
  config_.model.cache.tensor_cache.read.zero_output = false;
  EXPECT_FALSE(at::equal(LogitsOf(Make(config_)->model()), LogitsOf(Make(window)->model())));
}

TEST_F(Adaptation, ChangesWhatIsTrainedAndNothingElse) {
  using Wanted = std::function<bool(const std::string&)>;
  const auto has = [](const std::string& name, const char* part) { return name.find(part) != name.npos; };
  const Wanted memory = [&](const std::string& name) { return has(name, ".tensor_cache."); };
  const Wanted weights = [&](const std::string& name) { return memory(name) || has(name, ".self_attn."); };
  const Wanted all = [](const std::string&) { return true; };
  const std::pair<TrainedParameters, Wanted> cases[] = {{TrainedParameters::kMemory, memory},
                                                        {TrainedParameters::kMemoryAndAttention, weights},
                                                        {TrainedParameters::kLora, weights},
                                                        {TrainedParameters::kAll, all}};
  for (const auto& [parameters, wanted] : cases) {
    SCOPED_TRACE(NameOf(parameters));
    config_.train.parameters = parameters;
    const auto trainer = Make(config_);
    const auto before = Copies(trainer->model());
    Steps(*trainer, 3);
    const auto after = Copies(trainer->model());
    ASSERT_EQ(before.size(), after.size());
    for (const auto& [name, tensor] : before) EXPECT_NE(at::equal(tensor, after.at(name)), wanted(name)) << name;
  }
}

TEST_F(Adaptation, LowRankAdditionsHaveTheirRankAndAreSavedInTheWeights) {
  config_.train.parameters = TrainedParameters::kLora;
  config_.train.lora_rank = 2;
  const auto trainer = Make(config_);
  const auto before = Copies(trainer->model());
  Steps(*trainer, 3);
  const testing::TempFolder saved;
  ASSERT_TRUE(SaveModel(trainer->model(), saved.path()).ok());
  Result<Model> loaded = LoadModel(saved.path());
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  EXPECT_LT(at::abs(LogitsOf(*loaded) - LogitsOf(trainer->model())).max().item<float>(), 1e-5);
  const std::string name = "model.layers.1.self_attn.q_proj.weight";
  const Tensor addition = (Copies(*loaded).at(name) - before.at(name)).to(at::kDouble);
  const Tensor singular = std::get<1>(at::svd(addition));
  EXPECT_GT(singular[1].item<double>(), 1e-6);
  EXPECT_LT(singular[2].item<double>(), 1e-6);
}

TEST_F(Adaptation, GoesOnFromASavedStateWithTheSameBits) {
  for (const TrainedParameters parameters : {TrainedParameters::kMemory, TrainedParameters::kLora}) {
    config_.train.parameters = parameters;
    config_.train.distill = 0.5;
    const auto whole = Make(config_), half = Make(config_), rest = Make(config_);
    Steps(*whole, 4);
    Steps(*half, 2);
    ASSERT_TRUE(rest->Restore(half->Save().value()).ok());
    Steps(*rest, 2);
    ExpectSameParameters(*rest, *whole);
  }
}

TEST_F(Adaptation, ATeacherHasNothingToSayToItself) {
  config_.model.cache.method = CacheMethod::kFull;
  config_.train.distill = 1;
  EXPECT_LT(Make(config_)->Step(false)->loss, 1e-6);
  config_.model.cache.method = CacheMethod::kTensorCache;
  config_.train.parameters = TrainedParameters::kMemory;
  const auto trainer = Make(config_);
  const double first = trainer->Step(false)->loss;
  EXPECT_GT(first, 1e-4);
  Steps(*trainer, 60);
  EXPECT_LT(trainer->Step(false)->loss, first);
}

TEST_F(Adaptation, ATeacherMayHaveAMemoryOrAWindowItself) {
  config_.train.distill = 1;
  TrainConfig first = config_;
  first.train.distill = 0;
  const auto trainer = Make(first);
  Steps(*trainer, 2);
  const testing::TempFolder adapted, window;
  ASSERT_TRUE(SaveModel(trainer->model(), adapted.path()).ok());
  config_.train.init = adapted.path();
  EXPECT_GT(Make(config_)->Step(false)->loss, 1e-6);
  // A window model teaches what it was trained to do: its window version has nothing to learn. So does one whose memories are in
  // none of the layers.
  ModelConfig windowed = config_.model;
  config_.train.init = window.path();
  for (const CacheMethod method : {CacheMethod::kWindow, CacheMethod::kTensorCache}) {
    windowed.cache = {.method = method, .window = 6};
    windowed.cache.tensor_cache.layers = MemoryLayers::kNone;
    ASSERT_TRUE(SaveModel(RandomModel(windowed), window.path()).ok());
    EXPECT_LT(Make(config_)->Step(false)->loss, 1e-6) << NameOf(method);
  }
}

// Imported models may be BF16.
TEST_F(Adaptation, StartsFromOtherFloatingTypes) {
  const auto file = SafetensorsFile::Open(folder_.Path("model.safetensors"));
  ASSERT_TRUE(file.ok());
  std::vector<Tensor> kept;
  SafetensorsWriter writer;
  for (const std::string_view name : file->names()) {
    const TensorRef stored = file->Find(name).value();
    Tensor values = at::empty(at::IntArrayRef(stored.shape.data(), stored.shape.size()), at::kFloat);
    std::memcpy(values.mutable_data_ptr<float>(), stored.data.data(), stored.data.size());
    kept.push_back(values.to(at::kBFloat16));
    writer.Add(std::string(name), DType::kBF16, kept.back().sizes().vec(), kept.back().const_data_ptr());
  }
  const testing::TempFolder folder;
  ASSERT_TRUE(writer.Write(folder.Path("model.safetensors")).ok());
  const Tensor exact = LogitsOf(Make(config_)->model());
  config_.train.init = folder.path();
  const Tensor rounded = LogitsOf(Make(config_)->model());
  EXPECT_FALSE(at::equal(rounded, exact));
  EXPECT_LT(at::abs(rounded - exact).max().item<float>(), 0.2 * at::abs(exact).max().item<float>());
}

TEST_F(Adaptation, WithoutAStartMatricesAreOfTheRangeAskedFor) {
  config_.train.init = "";
  config_.train.initializer_range = 0;  // nothing tells one token from another
  EXPECT_NEAR(Make(config_)->Step(false)->loss, std::log(static_cast<double>(config_.model.vocab_size)), 1e-5);
}

TEST_F(Adaptation, RefusesWhatMakesNoSense) {
  const auto refused = [&](const std::vector<std::string>& overrides, const char* why) {
    TrainConfig config = config_;
    for (const std::string& assignment : overrides) ASSERT_TRUE(ApplyOverride(assignment, &config).ok()) << assignment;
    const Status status = ValidateTrainConfig(config);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(why), std::string::npos) << status.message();
  };
  refused({"train.parameters=memory", "train.init="}, "train.init");
  refused({"train.parameters=memory", "cache.method=window"}, "no memory");
  refused({"train.parameters=memory", "cache.tensor_cache.layers=none"}, "no memory");
  refused({"train.parameters=lora", "train.lora_rank=0"}, "lora_rank");
  refused({"train.distill=2"}, "train.distill");
  refused({"train.write_cost=-1"}, "train.write_cost");
  refused({"train.initializer_range=-1"}, "initializer_range");
  refused({"train.distill=0.5", "train.init="}, "train.init");
  refused({"train.distill=0.5", "train.block=4096"}, "train.block");
  refused({"train.distill=0.5", "train.carry_state=true"}, "one block");
  refused({"position_embedding=learned", "train.block=4096"}, "learned positions");
}

// The mean write strength of all heads after some steps.
TEST_F(Adaptation, ACostOfWritesMakesThemWeaker) {
  config_.model.cache.tensor_cache.write.strength = MemoryRate::kPerToken;
  const auto strength = [&](double cost) {
    TrainConfig config = config_;
    config.train.write_cost = cost;
    const auto trainer = Make(config);
    double mean = 0;
    for (int step = 0; step < 5; ++step) {
      const auto metrics = trainer->Step(/*with_layers=*/true);
      EXPECT_TRUE(metrics.ok()) << metrics.status().message();
      mean = 0;
      for (const LayerMetrics& layer : metrics->layers) {
        for (const auto& [name, values] : layer.learned) {
          if (name == "eta") mean += values[0];
        }
      }
    }
    return mean;
  };
  const double free = strength(0), paid = strength(1000);
  EXPECT_LT(paid, 0.999 * free);
}

TEST_F(Adaptation, ADifferentModelIsNamed) {
  config_.model.intermediate_size *= 2;
  const auto trainer = Trainer::Create(config_, std::move(data::MakeRecallSource(task_, 1)).value(), world_.get());
  ASSERT_FALSE(trainer.ok());
  EXPECT_NE(trainer.status().message().find("mlp"), std::string::npos) << trainer.status().message();
}

}  // namespace
}  // namespace tensorcache::train
