// The central promise at model level: a forward pass over the whole sequence, block by block with carried state, and token
// by token give the same logits and the same final state, for every cache method and every option.
#include <gtest/gtest.h>

#include <functional>

#include "train/model_testing.h"

namespace tensorcache::train {
namespace {

constexpr int64_t kTokens = 41;
constexpr int64_t kBatch = 2;

struct Outcome {
  Tensor logits;  // (B, T, V)
  ModelState state;
};

Outcome RunInBlocks(const Model& model, const Tensor& tokens, const std::vector<int64_t>& blocks,
                    const ForwardOptions& options = {}) {
  Outcome outcome;
  std::vector<Tensor> logits;
  int64_t first = 0;
  for (const int64_t length : blocks) {
    logits.push_back(model.Logits(model.Hidden(tokens.narrow(1, first, length), options, &outcome.state)));
    first += length;
  }
  EXPECT_EQ(first, tokens.size(1));
  outcome.logits = at::cat(logits, 1);
  return outcome;
}

double Distance(const Tensor& a, const Tensor& b) {
  if (a.defined() != b.defined() || (a.defined() && a.sizes() != b.sizes())) return INFINITY;
  return a.defined() && a.numel() > 0 ? (a - b).abs().max().item<double>() : 0;
}

// `tolerance` is relative to the size of what is compared.
void ExpectSame(const Outcome& got, const Outcome& want, double tolerance = 1e-5) {
  EXPECT_LT(Distance(got.logits, want.logits), tolerance * want.logits.abs().max().item<double>());
  EXPECT_EQ(got.state.position, want.state.position);
  for (size_t i = 0; i < want.state.layers.size(); ++i) {
    const auto a = got.state.layers[i].Parts(), b = want.state.layers[i].Parts();
    ASSERT_EQ(a.size(), b.size()) << "layer " << i;
    for (size_t part = 0; part < b.size(); ++part) {
      const auto& [name, tensor] = b[part];
      EXPECT_EQ(a[part].first, name);
      EXPECT_LE(Distance(a[part].second, tensor), tolerance * std::max(tensor.abs().max().item<double>(), 1e-3))
          << "layer " << i << ", " << name;
    }
  }
}

// Reads that are divided by their weights' sum are so by numbers near zero, too: that magnifies rounding.
double RoundingOf(const ModelConfig& config) { return config.cache.tensor_cache.read.normalize ? 1e-4 : 1e-5; }

class ModelInvariant : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override { at::set_num_threads(1); }
};

TEST_P(ModelInvariant, AnySplitGivesTheSameLogitsAndState) {
  const at::NoGradGuard no_grad;
  const ModelConfig config = ConfigOf(GetParam());
  const Model model = RandomModel(config);
  const Tensor tokens = RandomTokens(config, kBatch, kTokens, 3);
  const Outcome whole = RunInBlocks(model, tokens, {kTokens});
  ASSERT_TRUE(whole.logits.isfinite().all().item<bool>());
  EXPECT_GT(whole.logits.std().item<double>(), 0.05);  // differences would show
  EXPECT_EQ(Distance(model.Logits(model.Hidden(tokens, {})), whole.logits), 0) << "keeping a state changes nothing";
  const double tolerance = RoundingOf(config);
  ExpectSame(RunInBlocks(model, tokens, std::vector<int64_t>(kTokens, 1)), whole, tolerance);
  ExpectSame(RunInBlocks(model, tokens, {1, 2, 17, 3, 1, 1, 9, 7}), whole, tolerance);
  ExpectSame(RunInBlocks(model, tokens, {20, 21}), whole, tolerance);
}

TEST_P(ModelInvariant, CompositeGivesTheSameLogitsAndGradients) {
  const ModelConfig config = ConfigOf(GetParam());
  const Model model = RandomModel(config);
  const Tensor tokens = RandomTokens(config, kBatch, kTokens, 5);
  std::vector<Tensor> leaves;
  for (const NamedParameter& p : AllParameters(model.parameters())) {
    if (p.tensor.requires_grad()) leaves.push_back(p.tensor);
  }
  const auto run = [&](Backend backend, bool training) {
    at::manual_seed(17);
    const Tensor logits = model.Logits(model.Hidden(tokens, {.training = training, .backend = backend}));
    const Tensor loss = (logits * at::sin(at::arange(logits.numel(), at::kFloat).view_as(logits))).sum();
    std::vector<Tensor> results = torch::autograd::grad({loss}, leaves, {}, false, false, /*allow_unused=*/true);
    for (size_t i = 0; i < results.size(); ++i) {
      if (!results[i].defined()) results[i] = at::zeros_like(leaves[i]);
    }
    results.push_back(logits);
    return results;
  };
  for (const bool training : {false, true}) {
    const std::vector<Tensor> fused = run(Backend::kFused, training), composite = run(Backend::kComposite, training);
    for (size_t i = 0; i < fused.size(); ++i) {
      const double size = composite[i].abs().max().item<double>();
      EXPECT_LE(Distance(fused[i], composite[i]), 2e-4 * std::max(size, 1e-2)) << "tensor " << i;
      // Routing has gradients in training only, and a window longer than the text evicts nothing.
      if (training && config.cache.window < kTokens) {
        EXPECT_GT(size, 0) << "no gradient reaches tensor " << i;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(AllOptions, ModelInvariant, ::testing::ValuesIn(AllCases()),
                         [](const auto& info) { return info.param.name; });

// What makes training see the states of inference: without the chunk modes, both are one function.
TEST(ModelTraining, EqualsStreamingExactly) {
  at::set_num_threads(1);
  const at::NoGradGuard no_grad;
  for (const Case& c : AllCases()) {
    const ModelConfig config = ConfigOf(c);
    if (config.cache.tensor_cache.router.slots > 1) continue;  // routing is drawn in training
    const bool chunked = c.name.find("chunk_") != c.name.npos;
    const Model model = RandomModel(config);
    const Tensor tokens = RandomTokens(config, kBatch, kTokens, 9);
    const double distance =
        Distance(model.Hidden(tokens, {.training = true}), model.Hidden(tokens, {.training = false}));
    if (chunked) {
      EXPECT_GT(distance, 1e-3) << c.name << ": the chunk modes approximate";
    } else {
      EXPECT_EQ(distance, 0) << c.name;
    }
  }
}

TEST(ModelTraining, ChunkModesCarryTheirStateAcrossWholeChunks) {
  at::set_num_threads(1);
  const at::NoGradGuard no_grad;
  for (const char* mode : {"chunk_start", "chunk_mean"}) {
    for (const char* rule : {"outer", "delta", "wedge"}) {
      ModelConfig config = SmallConfig();
      ASSERT_TRUE(ApplyOverride(std::string("cache.tensor_cache.write.when=") + mode, &config).ok());
      ASSERT_TRUE(ApplyOverride(std::string("cache.tensor_cache.write.rule=") + rule, &config).ok());
      ASSERT_TRUE(ApplyOverride("cache.tensor_cache.write.chunk=4", &config).ok());
      const Model model = RandomModel(config);
      const Tensor tokens = RandomTokens(config, kBatch, kTokens, 9);
      const ForwardOptions training{.training = true};
      ExpectSame(RunInBlocks(model, tokens, {4, 16, 8, 13}, training), RunInBlocks(model, tokens, {kTokens}, training));
    }
  }
}

// One that this program can run, but not train.
TEST(ModelMethods, AMethodWithoutATrainHalfIsRefused) {
  class Untrained : public methods::Method {
    std::string_view name() const override { return "untrained"; }
    std::string_view title() const override { return "Untrained"; }
    std::string_view summary() const override { return "the last `window`"; }
  };
  static const Untrained method;
  ModelConfig config = SmallConfig();
  config.cache.method = methods::AddMethod(method);
  const Result<Model> model = Model::Create(config, {});
  ASSERT_FALSE(model.ok());
  EXPECT_EQ(model.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(model.status().message().find("untrained"), std::string::npos) << model.status().message();
}

TEST(ModelState, RowsThatStartLaterGoOnWithTheOthers) {
  at::set_num_threads(1);
  const at::NoGradGuard no_grad;
  for (const char* method : {"window", "streaming_llm", "infini", "tensor_cache", "running_mean"}) {
    ModelConfig config = SmallConfig();
    ASSERT_TRUE(ApplyOverride(std::string("cache.method=") + method, &config).ok());
    config.cache.infini.memory_rope = false;  // with it, Infini's features see positions, not differences
    const Model model = RandomModel(config);
    const Tensor tokens = RandomTokens(config, kBatch, kTokens, 21);
    constexpr int64_t kBlock = 13;
    const auto block = [&](int64_t row, int64_t index) {
      return tokens.narrow(0, row, 1).narrow(1, index * kBlock, kBlock);
    };
    // Row 0 sees blocks 0, 1, 2; row 1 starts with block 1.
    ModelState early, late{.origin = kBlock};
    model.Hidden(tokens.narrow(0, 0, 1).narrow(1, 0, 2 * kBlock), {}, &early);
    model.Hidden(block(1, 1), {}, &late);
    ModelState both = ModelState::Stack({early, late});
    both.position = kBlock;
    both.origin = kBlock;
    const Tensor together = model.Hidden(tokens.narrow(1, 2 * kBlock, kBlock), {}, &both);

    ModelState alone;
    model.Hidden(block(1, 1), {}, &alone);
    EXPECT_LT(Distance(together.narrow(0, 1, 1), model.Hidden(block(1, 2), {}, &alone)), 1e-4) << method;
    ModelState whole;
    model.Hidden(tokens.narrow(0, 0, 1).narrow(1, 0, 2 * kBlock), {}, &whole);
    EXPECT_LT(Distance(together.narrow(0, 0, 1), model.Hidden(block(0, 2), {}, &whole)), 1e-4) << method;
  }
}

}  // namespace
}  // namespace tensorcache::train
