// A text encoder whose weights are shared out over the ranks, each of which gathers a layer at a time, or are read from
// their files a layer at a time, encodes the same bits as an encoder that holds them all.
#include <c10/core/InferenceMode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "models/loading/deferred_weight.h"
#include "models/loading/sharded_weights.h"
#include "models/loading/streamed_weights.h"
#include "models/loading/weight_loader.h"
#include "models/text_encoders/text_encoder.h"
#include "models/weights/model_folder.h"
#include "tests/support/golden_pipeline.h"
#include "tests/support/test_folder.h"
#include "tests/support/thread_ranks.h"

namespace tessera::models {
namespace {

// A text encoder of a golden model.
struct OpenedEncoder {
  OpenedEncoder(const std::string& model, const std::string& component, at::ScalarType dtype, WeightShare share = {})
      : folder(*ModelFolder::Open(GoldenPipeline(model))),
        weights(std::make_shared<const WeightFolder>(*folder.Weights(component))),
        table(dtype, at::kCPU, share, StoredForms(*weights)) {
    base::ConfigReader reader = *folder.Config(component);
    config = *ReadTextEncoder(folder.components().at(component).class_name, reader, folder.HasComponent("processor"));
    encoder = config.make(table);
    if (share.streamed) return;
    const absl::Status loaded = LoadWeights(*weights, table, component);
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

  ModelFolder folder;
  std::shared_ptr<const WeightFolder> weights;
  ParamTable table;
  TextEncoderConfig config;
  std::unique_ptr<TextEncoder> encoder;
};

void ExpectStreamedBits(const std::string& model, const std::string& component) {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    SCOPED_TRACE(dtype);
    const c10::InferenceMode no_gradients;
    OpenedEncoder whole(model, component, dtype);
    whole.table.PackForInference();
    const EncodedTokens expected = whole.Encode(nullptr);
    std::optional<c10::InferenceMode> ordinary(std::in_place, false);
    const OpenedEncoder opened(model, component, dtype, {.streamed = true});
    StreamedWeights weights(opened.weights, opened.table);
    ordinary.reset();
    for (int text = 0; text < 2; ++text) {
      const EncodedTokens encoded = opened.Encode(&weights);
      EXPECT_TRUE(at::equal(encoded.hidden, expected.hidden));
      ASSERT_EQ(encoded.pooled.defined(), expected.pooled.defined());
      EXPECT_TRUE(!expected.pooled.defined() || at::equal(encoded.pooled, expected.pooled));
      for (const Param& param : opened.table.params()) {
        EXPECT_EQ(param.storage.storage().nbytes(), 0) << param.spec.name;
      }
    }
  }
}

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

TEST_P(ShardedEncoderTest, ALayerAtATimeIsReadFromTheFiles) {
  const auto [model, component] = GetParam();
  ExpectStreamedBits(model, component);
}

// The weights of this one are quantized in its files.
TEST(StreamedEncoderTest, QuantizedLayersAreReadWithTheirScales) {
  const TestFolder folder;
  constexpr auto kRecursive = std::filesystem::copy_options::recursive;
  std::filesystem::copy(GoldenPipeline("flux_dev"), folder / "model", kRecursive);
  std::filesystem::remove_all(folder / "model/text_encoder_2");
  std::filesystem::copy("tests/golden-files/folders/flux_small_nf4/text_encoder_2", folder / "model/text_encoder_2",
                        kRecursive);
  ExpectStreamedBits(folder / "model", "text_encoder_2");
}

TEST(StreamedEncoderTest, AFileThatIsWrittenToIsNamed) {
  const TestFolder copy;
  std::filesystem::copy(GoldenPipeline("flux_dev"), copy / "model", std::filesystem::copy_options::recursive);
  const at::NoGradGuard no_gradients;
  const OpenedEncoder opened(copy / "model", "text_encoder_2", at::kFloat, {.streamed = true});
  StreamedWeights weights(opened.weights, opened.table);
  opened.Encode(&weights);
  const std::string path = copy / "model/text_encoder_2/model-00002-of-00002.safetensors";
  std::filesystem::resize_file(path, std::filesystem::file_size(path) / 2);
  EXPECT_THAT([&] { opened.Encode(&weights); },
              testing::ThrowsMessage<WeightReadError>(testing::HasSubstr("model-00002-of-00002.safetensors")));
  for (const Param& param : opened.table.params()) {
    EXPECT_EQ(param.storage.storage().nbytes(), 0) << param.spec.name;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Encoders, ShardedEncoderTest,
    testing::Values(std::tuple{"flux_dev", "text_encoder"}, std::tuple{"flux_dev", "text_encoder_2"},
                    std::tuple{"hunyuan11", "text_encoder"}, std::tuple{"qwen_edit_2511", "text_encoder"}),
    [](const auto& info) { return std::string(std::get<0>(info.param)) + "_" + std::get<1>(info.param); });

}  // namespace
}  // namespace tessera::models
