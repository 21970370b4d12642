// Tests models that are loaded for training: the parameters they list, and that the operators propagate gradients to
// all of them.
#include <gtest/gtest.h>

#include <string>

#include "models/families/families.h"
#include "models/families/family_description.h"
#include "models/families/prompt_request.h"
#include "models/loading/load_options.h"
#include "tests/support/random_tensor.h"

namespace tessera::models {
namespace {

struct Loaded {
  absl::StatusOr<std::unique_ptr<Family>> family;
  TransformerInput input;
};

// Loads a golden model in fp64 with an input of two rows of 3 x 5 tokens and a prompt.
Loaded Load(const std::string& name, LoadOptions options) {
  const absl::StatusOr<ModelFolder> folder = ModelFolder::Open("tests/golden/pipelines/" + name);
  TORCH_CHECK(folder.ok(), std::string(folder.status().message()));
  const FamilyEntry* entry = *FindFamily(folder->class_name());
  options.dtype = at::kDouble;
  Loaded loaded{.family = entry->load(*folder, options), .input = {}};
  if (!loaded.family.ok()) return loaded;
  Family& family = **loaded.family;
  const int64_t side = entry->describe(*folder)->size_multiple;
  const LatentGeometry geometry = family.Geometry(3 * side, 5 * side);
  parallel::SingleRank one;
  parallel::LocalAttention attention;
  const absl::StatusOr<EncodedPrompt> encoded =
      family.Encode({.prompt = "two cats", .max_sequence_length = 13, .height = 3 * side, .width = 5 * side},
                    {.attention = attention, .tensor = one, .world = one});
  TORCH_CHECK(encoded.ok(), std::string(encoded.status().message()));
  const ConditioningRow& row = encoded->guidance.branches.back().row;
  loaded.input = {.patches = family.ToPatches(Random({2, geometry.channels, geometry.height, geometry.width}, 1)),
                  .grid = geometry.grid,
                  .span = {.begin = 0, .end = geometry.grid.count()},
                  .timestep = at::tensor({811.0, 97.0}, at::kDouble),
                  .text = row.text.unsqueeze(0).repeat({2, 1, 1})};
  for (const at::Tensor& extra : row.extras) {
    std::vector<int64_t> twice(static_cast<size_t>(extra.dim()) + 1, 1);
    twice[0] = 2;
    loaded.input.extras.push_back(extra.unsqueeze(0).repeat(twice));
  }
  return loaded;
}

class TrainingLoadTest : public testing::TestWithParam<const char*> {};

// Uses central differences along one random direction per parameter. Their error is about the square of the step,
// 1e-10; the rounding error is 1e-16 divided by the step.
TEST_P(TrainingLoadTest, EveryParameterGetsTheGradientOfFiniteDifferences) {
  const Loaded loaded = Load(GetParam(), {.for_training = true});
  ASSERT_TRUE(loaded.family.ok()) << loaded.family.status();
  const Family& family = **loaded.family;
  parallel::SingleRank one;
  parallel::LocalAttention attention;
  const auto loss = [&] {
    const at::Tensor output =
        RunTransformer(family.transformer(), loaded.input, {.attention = attention, .tensor = one, .world = one});
    return (output * Random(output.sizes(), 5)).sum() + output.square().sum();
  };
  loss().backward();
  ASSERT_GT(family.parameters().size(), 40u);
  double largest = 0;
  for (const Param& param : family.parameters()) {
    ASSERT_TRUE(param.storage.grad().defined()) << param.spec.name;
    largest = std::max(largest, param.storage.grad().abs().max().item<double>());
  }
  constexpr double kStep = 1e-5;
  uint64_t seed = 100;
  for (const Param& param : family.parameters()) {
    const at::Tensor direction = Random(param.Value().sizes(), seed++);
    const double expected = (param.View(param.storage.grad()) * direction).sum().item<double>();
    const at::NoGradGuard no_gradients;
    const auto moved = [&](double step) {
      param.Value().add_(direction, step);
      const double value = loss().item<double>();
      param.Value().sub_(direction, step);
      return value;
    };
    const double measured = (moved(kStep) - moved(-kStep)) / (2 * kStep);
    EXPECT_NEAR(measured, expected, 1e-5 * std::max(std::abs(expected), 1e-2 * largest)) << param.spec.name;
  }
}

TEST_P(TrainingLoadTest, WithoutTheOptionNothingIsListedAndNothingAsksForAGradient) {
  const Loaded loaded = Load(GetParam(), {});
  ASSERT_TRUE(loaded.family.ok()) << loaded.family.status();
  EXPECT_TRUE((*loaded.family)->parameters().empty());
  parallel::SingleRank one;
  parallel::LocalAttention attention;
  EXPECT_FALSE(RunTransformer((*loaded.family)->transformer(), loaded.input,
                              {.attention = attention, .tensor = one, .world = one})
                   .requires_grad());
}

// Half of the split parameters, all others in full, and packed parameters each with rows of their part.
TEST_P(TrainingLoadTest, ATensorRankListsItsPartOfEveryParameter) {
  const Loaded whole = Load(GetParam(), {.for_training = true});
  const Loaded part = Load(GetParam(), {.for_training = true, .share = {.tensor = {.rank = 1, .size = 2}}});
  ASSERT_TRUE(whole.family.ok() && part.family.ok());
  const std::span<const Param> all = (*whole.family)->parameters(), own = (*part.family)->parameters();
  ASSERT_EQ(all.size(), own.size());
  int split = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(all[i].spec.name, own[i].spec.name);
    EXPECT_TRUE(own[i].storage.requires_grad()) << own[i].spec.name;
    const bool is_split = own[i].spec.role != LinearRole::kReplicated;
    split += is_split;
    EXPECT_EQ(own[i].Value().numel() * (is_split ? 2 : 1), all[i].Value().numel()) << own[i].spec.name;
  }
  EXPECT_GT(split, 20);
}

TEST_P(TrainingLoadTest, StreamedBlocksAreRefused) {
  const Loaded loaded = Load(GetParam(), {.placement = {.stream_blocks = true}, .for_training = true});
  EXPECT_TRUE(absl::IsInvalidArgument(loaded.family.status())) << loaded.family.status();
}

INSTANTIATE_TEST_SUITE_P(Families, TrainingLoadTest, testing::Values("flux_dev", "pixart_sigma"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace tessera::models
