#include "server/workers/layout_figures.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "control/model/model_description.h"
#include "control/parameters/placement.h"

namespace tessera::server {
namespace {

using ::testing::HasSubstr;

// Returns FLUX.1: 19 double blocks and 38 single ones of width 3,072.
control::ModelDescription Flux() {
  control::ModelDescription model = {.default_guidance_scale = 3.5, .heads = 24, .blocks = 57};
  model.components = {{.name = "transformer", .role = control::ComponentRole::kTransformer, .parameters = 5700},
                      {.name = "text_encoder", .role = control::ComponentRole::kTextEncoder, .parameters = 100},
                      {.name = "text_encoder_2", .role = control::ComponentRole::kTextEncoder, .parameters = 1000},
                      {.name = "vae", .role = control::ComponentRole::kAutoencoder, .parameters = 10}};
  control::TransformerShape& shape = model.transformer;
  shape = {.exchange = {.width = 3072,
                        .output_features = 64,
                        .prediction_features = 64,
                        .blocks = std::vector<parallel::BlockExchange>(19, {.kind = parallel::BlockKind::kJoint}),
                        .long_skips = {}},
           .block_flops = std::vector<double>(57, 1)};
  model.cost = {.token_side = 16, .text_tokens = 512, .joint_text = true, .guidance_is_input = true};
  shape.exchange.blocks.resize(57, {.kind = parallel::BlockKind::kFused});
  return model;
}

SentBytes Sent(const char* layout, const control::ModelDescription& model) {
  return *BytesSent(*parallel::ParseLayout(layout), model.transformer,
                    *DefaultPass(model, 1024, 1024, control::Dtype::kBf16));
}

TEST(LayoutFiguresTest, AnImageHasATokenForEachSquareOfItsPixels) {
  const absl::StatusOr<parallel::ForwardPass> pass = DefaultPass(Flux(), 768, 1024, control::Dtype::kBf16);
  ASSERT_TRUE(pass.ok()) << pass.status();
  EXPECT_EQ(pass->image_tokens, 48 * 64);
  EXPECT_EQ(pass->element_bytes, 2);
  EXPECT_EQ(DefaultPass(Flux(), 768, 1024, control::Dtype::kFp64)->element_bytes, 8);
}

TEST(LayoutFiguresTest, GuidanceHasTwoRowsUnlessItIsOffOrBuiltIn) {
  control::ModelDescription model = Flux();
  EXPECT_EQ(DefaultPass(model, 64, 64, control::Dtype::kBf16)->text_tokens, std::vector<int64_t>{512});
  model.cost.guidance_is_input = false;
  EXPECT_EQ(DefaultPass(model, 64, 64, control::Dtype::kBf16)->text_tokens, (std::vector<int64_t>{512, 512}));
  model.default_guidance_scale = 1;
  EXPECT_EQ(DefaultPass(model, 64, 64, control::Dtype::kBf16)->text_tokens, std::vector<int64_t>{512});
}

TEST(LayoutFiguresTest, SizesWithoutTokensAndWithTooManyAreRefused) {
  EXPECT_THAT(std::string(DefaultPass(Flux(), 8, 1024, control::Dtype::kBf16).status().message()),
              HasSubstr("size is 1024x8"));
  EXPECT_FALSE(DefaultPass(Flux(), 1 << 30, 1 << 30, control::Dtype::kBf16).ok());
  EXPECT_FALSE(DefaultPass(Flux(), 0, -64, control::Dtype::kBf16).ok());
}

TEST(LayoutFiguresTest, AModelOfUnknownShapeHasNoPass) {
  control::ModelDescription model = Flux();
  model.transformer = {};
  EXPECT_EQ(DefaultPass(model, 1024, 1024, control::Dtype::kBf16).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

// Computed by hand from docs/parallelism.md, which gives the same values in MB.
TEST(LayoutFiguresTest, AFluxStepSendsWhatTheDocumentSays) {
  const int64_t ulysses2 = int64_t{57} * 4 * 2304 * 1536 * 2 + 2048 * 64 * 2;
  EXPECT_EQ(Sent("ulysses=2", Flux()).most.total(), ulysses2);
  EXPECT_EQ(Sent("ulysses=2", Flux()).least.total(), ulysses2);
  EXPECT_EQ(Sent("serial", Flux()).most.total(), 0);
}

TEST(LayoutFiguresTest, TheStageThatSendsLeastAndTheOneThatSendsMostAreApart) {
  const SentBytes sent = Sent("pipe=2", Flux());
  EXPECT_EQ(sent.most, parallel::ExchangedBytes{.pipe = int64_t{4608} * 3072 * 2});
  EXPECT_EQ(sent.least, parallel::ExchangedBytes{.pipe = 4096 * 64 * 2});
}

TEST(LayoutFiguresTest, OnlyTheFirstRankHoldsTextEncoders) {
  const RankWeights weights = WeightsOf(*parallel::ParseLayout("pipe=3,tensor=2"), Flux(), control::Dtype::kBf16);
  EXPECT_EQ(weights.others, 2u * (5700 / 3 / 2 + 10));
  EXPECT_EQ(weights.first, weights.others + 2u * 1100);
}

}  // namespace
}  // namespace tessera::server
