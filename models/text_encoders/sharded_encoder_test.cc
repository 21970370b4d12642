// A text encoder whose weights are shared out over the ranks, each of which gathers a layer at a time, encodes the same
// bits as an encoder that holds them all.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <tuple>

#include "models/loading/sharded_weights.h"
#include "models/loading/weight_loader.h"
#include "models/text_encoders/text_encoder.h"
#include "models/weights/model_folder.h"
#include "tests/support/golden_pipeline.h"
#include "tests/support/thread_ranks.h"

namespace tessera::models {
namespace {

// A text encoder of a golden model.
struct OpenedEncoder {
  OpenedEncoder(const std::string& model, const std::string& component, at::ScalarType dtype) : table(dtype, at::kCPU) {
    const ModelFolder folder = *ModelFolder::Open(GoldenPipeline(model));
    base::ConfigReader reader = *folder.Config(component);
    config = *ReadTextEncoder(folder.components().at(component).class_name, reader, folder.HasComponent("processor"));
    encoder = config.make(table);
    const absl::Status loaded = LoadWeights(*folder.Weights(component), table, component);
    TORCH_CHECK(loaded.ok(), std::string(loaded.message()));
  }

  EncodedTokens Encode(WeightResidency* weights) const {
    parallel::SingleRank one;
    parallel::LocalAttention attention;
    if (config.pictures.has_value()) return EncodeWithPicture(weights);
    const at::Tensor ids = at::tensor({3, 11, 5, 2, 0, 0}, at::kLong).unsqueeze(0);
    const at::Tensor mask = at::tensor({1, 1, 1, 1, 0, 0}, at::kLong).unsqueeze(0);
    return encoder->Forward({.ids = ids, .mask = mask, .states = {1, -1}, .weights = weights},
                            {.attention = attention, .tensor = one, .world = one});
  }

  // A text with a picture of 4 x 2 patches, which are two tokens.
  EncodedTokens EncodeWithPicture(WeightResidency* weights) const {
    parallel::SingleRank one;
    parallel::LocalAttention attention;
    const int64_t picture = config.pictures->picture_id;
    const int64_t features = 3 * config.pictures->frames * config.pictures->patch * config.pictures->patch;
    const at::Tensor patches = at::cos(at::arange(8 * features, at::kFloat)).view({8, features});
    return encoder->Forward({.ids = at::tensor({int64_t{3}, picture, picture, int64_t{2}}, at::kLong).unsqueeze(0),
                             .states = {1, -1},
                             .weights = weights,
                             .pictures = {{.patches = patches, .grid = {.rows = 4, .columns = 2}}}},
                            {.attention = attention, .tensor = one, .world = one});
  }

  ParamTable table;
  TextEncoderConfig config;
  std::unique_ptr<TextEncoder> encoder;
};

class ShardedEncoderTest : public testing::TestWithParam<std::tuple<const char*, const char*>> {};

TEST_P(ShardedEncoderTest, EveryRankEncodesTheBitsOfAnEncoderThatHoldsAllWeights) {
  const auto [model, component] = GetParam();
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    EncodedTokens expected;
    {
      const c10::InferenceMode no_gradients;
      OpenedEncoder whole(model, component, dtype);
      whole.table.PackForInference();
      expected = whole.Encode(nullptr);
    }
    for (const int ranks : {1, 2, 3}) {
      RunRanks(ranks, [&](ThreadRank& rank) {
        const at::NoGradGuard no_gradients;
        const OpenedEncoder opened(model, component, dtype);
        ShardedWeights weights(opened.table.params(), rank.world());
        for (int text = 0; text < 2; ++text) {
          const EncodedTokens encoded = opened.Encode(&weights);
          EXPECT_TRUE(at::equal(encoded.hidden, expected.hidden)) << dtype << " on " << ranks;
          ASSERT_EQ(encoded.pooled.defined(), expected.pooled.defined());
          EXPECT_TRUE(!expected.pooled.defined() || at::equal(encoded.pooled, expected.pooled));
          for (const Param& param : opened.table.params()) {
            EXPECT_EQ(param.storage.storage().nbytes(), 0) << param.spec.name;
          }
        }
      });
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Encoders, ShardedEncoderTest,
    testing::Values(std::tuple{"flux_dev", "text_encoder"}, std::tuple{"flux_dev", "text_encoder_2"},
                    std::tuple{"hunyuan11", "text_encoder"}, std::tuple{"qwen_edit_2511", "text_encoder"}),
    [](const auto& info) { return std::string(std::get<0>(info.param)) + "_" + std::get<1>(info.param); });

}  // namespace
}  // namespace tessera::models
