#include "train/checkpoint.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "core/file.h"
#include "core/safetensors.h"
#include "testing/temp_folder.h"
#include "train/model_testing.h"

namespace tensorcache::train {
namespace {

namespace fs = std::filesystem;

class Checkpoint : public ::testing::Test {
 protected:
  void SetUp() override {
    config_.vocab_size = 11;
    config_.hidden_size = 16;
    config_.intermediate_size = 20;
    config_.num_hidden_layers = 2;
    config_.num_attention_heads = 4;
    config_.num_key_value_heads = 2;
    config_.gated_mlp = true;
    config_.attention_bias = true;
  }

  Model Make(uint64_t seed) const {
    Result<Model> model = Model::Create(config_, {.seed = seed});
    EXPECT_TRUE(model.ok()) << model.status().message();
    return std::move(model).value();
  }

  const testing::TempFolder temp_;
  const std::string folder_ = temp_.path();
  ModelConfig config_;
};

TEST_F(Checkpoint, LoadsWhatWasSaved) {
  const Model saved = Make(1);
  ASSERT_TRUE(SaveModel(saved, folder_).ok());
  Result<Model> loaded = LoadModel(folder_);
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  const auto a = AllParameters(saved.parameters()), b = AllParameters(loaded->parameters());
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(at::equal(a[i].tensor, b[i].tensor)) << a[i].name;
}

TEST_F(Checkpoint, StoresTheNamesThatModelHubsUse) {
  ASSERT_TRUE(SaveModel(Make(1), folder_).ok());
  Result<SafetensorsFile> file = SafetensorsFile::Open(folder_ + "/model.safetensors");
  ASSERT_TRUE(file.ok());
  const std::vector<int64_t> q = {16, 16}, k = {8, 16}, up = {20, 16};
  EXPECT_TRUE(file->Find("model.layers.1.self_attn.q_proj.weight", DType::kF32, q).ok());
  EXPECT_TRUE(file->Find("model.layers.1.self_attn.k_proj.weight", DType::kF32, k).ok());
  EXPECT_TRUE(file->Find("model.layers.1.self_attn.v_proj.bias").ok());
  EXPECT_TRUE(file->Find("model.layers.0.mlp.gate_proj.weight", DType::kF32, up).ok());
  EXPECT_TRUE(file->Find("model.layers.0.mlp.up_proj.weight", DType::kF32, up).ok());
  EXPECT_TRUE(file->Find("model.layers.0.self_attn.tensor_cache.lambda_logit").ok());
  EXPECT_FALSE(file->Find("lm_head.weight").ok()) << "tied";
}

// Of every method and option: what it declares is stored under the names by which the run half looks for it, and nothing else.
TEST_F(Checkpoint, StoresWhatTheMethodDeclares) {
  for (const Case& c : AllCases()) {
    SCOPED_TRACE(c.name);
    const ModelConfig config = ConfigOf(c);
    ASSERT_TRUE(SaveModel(RandomModel(config), folder_).ok());
    const Result<SafetensorsFile> file = SafetensorsFile::Open(folder_ + "/model.safetensors");
    ASSERT_TRUE(file.ok());
    const methods::Method& method = methods::MethodOf(config.cache);
    int64_t declared = 0;
    for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
      for (const methods::LearnedTensor& tensor : method.Tensors(methods::PlaceOf(config, layer))) {
        const std::string name = methods::TensorName(method, layer, tensor);
        EXPECT_TRUE(file->Find(name, DType::kF32, tensor.shape).ok()) << name;
        ++declared;
      }
    }
    const auto names = file->names();
    EXPECT_EQ(std::count_if(names.begin(), names.end(), methods::IsOfMethod), declared);
  }
}

TEST_F(Checkpoint, NamesTensorsThatAreMissingOrTooMany) {
  ASSERT_TRUE(SaveModel(Make(1), folder_).ok());
  config_.cache.method = CacheMethod::kWindow;
  Status status = LoadParameters(folder_, Make(1));
  EXPECT_NE(status.message().find("self_attn.tensor_cache"), std::string::npos) << status.message();
  config_.num_hidden_layers = 3;
  status = LoadParameters(folder_, Make(1));
  EXPECT_NE(status.message().find("model.layers.2"), std::string::npos) << status.message();
  EXPECT_FALSE(LoadModel(folder_ + "/none").ok());
}

TEST_F(Checkpoint, TrainStateRoundTripsAndForeignFilesAreRefused) {
  const TrainState state{.texts = {{"step", "5"}}, .tensors = {{"a", at::arange(6, at::kFloat).view({2, 3})}}};
  EXPECT_EQ(LoadTrainState(folder_).status().code(), StatusCode::kNotFound);
  ASSERT_TRUE(SaveTrainState(state, folder_).ok());
  Result<TrainState> loaded = LoadTrainState(folder_);
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  EXPECT_EQ(loaded->texts.at("step"), "5");
  EXPECT_TRUE(at::equal(loaded->tensors.at(0).tensor, state.tensors[0].tensor));
  ASSERT_TRUE(SaveModel(Make(1), folder_).ok());
  fs::copy_file(folder_ + "/model.safetensors", folder_ + "/train_state.safetensors",
                fs::copy_options::overwrite_existing);
  EXPECT_EQ(LoadTrainState(folder_).status().code(), StatusCode::kCorrupt);
}

TEST_F(Checkpoint, InitialMatricesHaveTheDeviationAskedFor) {
  const auto small = AllParameters(Make(1).parameters());
  const Result<Model> made = Model::Create(config_, {.seed = 1, .deviation = 0.04});
  ASSERT_TRUE(made.ok());
  const auto large = AllParameters(made->parameters());
  for (size_t i = 0; i < small.size(); ++i) {
    const bool matrix = small[i].kind == ParameterKind::kMatrix || small[i].kind == ParameterKind::kMemoryOutput;
    const double factor = matrix ? 2 : 1;
    EXPECT_TRUE(at::equal(large[i].tensor, small[i].tensor * factor)) << small[i].name;
  }
}

TEST_F(Checkpoint, InitialParametersDependOnTheSeedAlone) {
  const auto a = AllParameters(Make(1).parameters()), b = AllParameters(Make(1).parameters()),
             c = AllParameters(Make(2).parameters());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_TRUE(at::equal(a[i].tensor, b[i].tensor));
    if (a[i].kind == ParameterKind::kMatrix) {
      EXPECT_FALSE(at::equal(a[i].tensor, c[i].tensor)) << a[i].name;
    }
  }
}

}  // namespace
}  // namespace tensorcache::train
