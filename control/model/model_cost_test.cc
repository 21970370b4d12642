#include "control/model/model_cost.h"

#include <gtest/gtest.h>

#include <string>

#include "control/host/device.h"
#include "control/model/group_share.h"
#include "control/model/model_description.h"
#include "control/parameters/job_parameters.h"
#include "control/parameters/placement.h"

namespace tessera::control {
namespace {

// FLUX.1-dev, according to its configuration: 19 joint and 38 fused blocks of width 3072.
ModelCost Flux() {
  ModelCost cost = {
      .token_side = 16, .text_tokens = 512, .guidance_is_input = true, .decode_values_per_pixel = 256 + 3 * 128};
  parallel::ExchangeModel transformer = {.width = 3072, .blocks = {}, .long_skips = {}};
  transformer.blocks.resize(19, {.kind = parallel::BlockKind::kJoint});
  transformer.blocks.resize(57, {.kind = parallel::BlockKind::kFused});
  SetTransformer(transformer, /*mlp_ratio=*/4, {.height = 1024, .width = 1024}, cost);
  return cost;
}

JobParameters Job(int32_t side) { return {.height = side, .width = side, .guidance_scale = 3.5}; }

// A unit a token and 10 bytes at four bytes a value.
ModelCost Tenth() { return {.flops = {.image = 1}, .values_per_token = 2.5}; }

constexpr ImageSize kSmall = {.height = 8, .width = 8};

TEST(ModelCostTest, ARowHasTheTokensOfItsImageAndOfItsText) {
  const ImageWork work = WorkOf(Flux(), Job(512));
  EXPECT_EQ(ImageTokens(Flux(), work.size), 1024);
  EXPECT_EQ(work.text_tokens, 512);
  JobParameters job = Job(512);
  job.max_sequence_length = 100;
  EXPECT_EQ(WorkOf(Flux(), job).text_tokens, 100);
  ModelCost other = Flux();
  other.fixed_text_tokens = 77;
  EXPECT_EQ(WorkOf(other, job).text_tokens, 177);
}

// By hand: 12 width² weights in each of 57 blocks for each of 1024 + 512 tokens, 2 operations for each weight; 4 ·
// width operations for each of 1536² pairs.
TEST(ModelCostTest, AStepHasTheProductsAndAttentionOfAllItsTokens) {
  const double by_hand = 57 * (1536.0 * 2 * 12 * 3072 * 3072 + 1536.0 * 1536 * 4 * 3072);
  EXPECT_DOUBLE_EQ(StepFlops(Flux(), WorkOf(Flux(), Job(512))), by_hand);
  JobParameters guided = Job(512);
  guided.negative_prompt = "";
  guided.options.true_cfg_scale = 2;
  EXPECT_DOUBLE_EQ(StepFlops(Flux(), WorkOf(Flux(), guided)), 2 * by_hand);
}

TEST(ModelCostTest, CountsTheBranchesThatTheModelRuns) {
  ModelCost cost;
  JobParameters job = Job(512);
  EXPECT_EQ(WorkOf(cost, job).rows, 2);
  job.options.skip_layers.layers = {7};
  EXPECT_EQ(WorkOf(cost, job).rows, 3);
  job.guidance_scale = 1;
  EXPECT_EQ(WorkOf(cost, job).rows, 1) << "without guidance no layers are skipped";
  cost.guidance_is_input = true;
  job = Job(512);
  EXPECT_EQ(WorkOf(cost, job).rows, 1);
  job.options.true_cfg_scale = 2;
  EXPECT_EQ(WorkOf(cost, job).rows, 1) << "it needs a negative prompt";
  job.negative_prompt = "";
  EXPECT_EQ(WorkOf(cost, job).rows, 2);
}

TEST(ModelCostTest, AnImageThatIsBinnedHasTheTokensOfItsStandardSize) {
  ModelCost cost = Flux();
  cost.sizes.sizes = {{1, 1024, 1024}, {2, 1408, 704}};
  JobParameters job = Job(64);
  job.resolution_binning = true;
  EXPECT_EQ(WorkOf(cost, job).size, (ImageSize{.height = 1024, .width = 1024}));
  job.height = 128;
  EXPECT_EQ(WorkOf(cost, job).size, (ImageSize{.height = 1408, .width = 704}));
  job.resolution_binning = false;
  EXPECT_EQ(WorkOf(cost, job).size, (ImageSize{.height = 128, .width = 64}));
}

TEST(ModelCostTest, AmongSizesOfTheNearestRatioTheNearestAreaIsChosen) {
  const StandardSizes sizes = {.ratio_is_width_by_height = true, .sizes = {{1, 100, 100}, {1, 200, 200}, {2, 50, 100}}};
  EXPECT_EQ(NearestSize(sizes, {.height = 160, .width = 190}), (ImageSize{.height = 200, .width = 200}));
  EXPECT_EQ(NearestSize(sizes, {.height = 110, .width = 110}), (ImageSize{.height = 100, .width = 100}));
  EXPECT_EQ(NearestSize(sizes, {.height = 100, .width = 190}), (ImageSize{.height = 50, .width = 100}));
  EXPECT_EQ(NearestSize({}, {.height = 3, .width = 5}), (ImageSize{.height = 3, .width = 5}));
}

TEST(ModelCostTest, RanksDivideActivations) {
  const ImageWork work = {.size = kSmall, .rows = 2};
  EXPECT_EQ(PeakBytes(Tenth(), work, 3, {}), 3 * 2 * 64 * 10);
  EXPECT_EQ(PeakBytes(Tenth(), work, 3, {.sequence = 4}), 3 * 2 * 16 * 10);
  EXPECT_EQ(PeakBytes(Tenth(), work, 3, {.sequence = 4, .tensor = 2, .cfg = 2}), 3 * 1 * 16 * 10 / 2);
  EXPECT_EQ(PeakBytes(Tenth(), work, 3, {.element_bytes = 2}), 3 * 2 * 64 * 5);
}

TEST(ModelCostTest, RanksOfTheSequenceDivideJointTextAlone) {
  ModelCost cost = Tenth();
  const ImageWork work = {.size = kSmall, .text_tokens = 20};
  EXPECT_EQ(PeakBytes(cost, work, 1, {.sequence = 4}), (16 + 20) * 10);
  cost.joint_text = true;
  EXPECT_EQ(PeakBytes(cost, work, 1, {.sequence = 4}), (16 + 5) * 10);
}

TEST(ModelCostTest, WhereImagesShareNoPassABatchMultipliesModulationsAlone) {
  ModelCost cost = Tenth();
  cost.blocks = 7;
  cost.values_per_block = 0.25;
  const ImageWork work = {.size = kSmall, .rows = 2};
  EXPECT_EQ(PeakBytes(cost, work, 3, {}), 3 * 2 * (64 * 10 + 7));
  EXPECT_EQ(PeakBytes(cost, work, 3, {.images_share_passes = false}), 2 * 64 * 10 + 3 * 2 * 7);
  EXPECT_EQ(PeakBytes(cost, work, 3, {.pipe = 2}), 3 * 2 * (64 * 10 + 4)) << "of the stage with most blocks";
}

// A decoder computes in bands of rows, of which a small image is one.
TEST(ModelCostTest, ADecoderOfTheHostHasTemporariesOfABandInAdditionToItsLayers) {
  const ModelCost cost = {.values_per_token = 0.25, .decode_values_per_pixel = 2.5};
  const ImageWork small = {.size = kSmall}, large = {.size = {.height = 80, .width = 8}};
  EXPECT_EQ(PeakBytes(cost, small, 1, {}), 640);
  EXPECT_EQ(PeakBytes(cost, small, 1, {.most_band_bytes = 1000}), 2 * 640);
  EXPECT_EQ(PeakBytes(cost, large, 1, {.most_band_bytes = 1000}), 6400 + 1000);
  EXPECT_EQ(PeakBytes(cost, large, 1, {.tensor = 10, .most_band_bytes = 1000}), 2 * 640) << "of a rank's rows";
}

// 4096 tokens of the image and 512 of the text, 16 widths each; six widths of modulation for 64 steps in 57 blocks.
TEST(ModelCostTest, AnImageOfFluxNeedsTheMemoryOfItsDecoderOrOfAStep) {
  constexpr double kActivations = 4608.0 * 16 * 3072, kModulations = 57.0 * 6 * 64 * 3072;
  ModelCost cost = Flux();
  const auto bytes = [&](const parallel::MeshShape& mesh, Dtype dtype) {
    return PeakBytes(cost, WorkOf(cost, Job(1024)), 1, ShareOf(mesh, DeviceKind::kCuda, dtype));
  };
  EXPECT_EQ(bytes({}, Dtype::kBf16), 2 * 1024.0 * 1024 * 640);
  EXPECT_EQ(bytes({.ulysses = 2}, Dtype::kBf16), 1024.0 * 1024 * 640);
  cost.decode_values_per_pixel = 0;
  EXPECT_EQ(bytes({}, Dtype::kBf16), 2 * (kActivations + kModulations));
  cost.guidance_is_input = false;
  EXPECT_EQ(bytes({}, Dtype::kFp32), 4 * 2 * (kActivations + kModulations));
  EXPECT_EQ(bytes({.cfg = 2}, Dtype::kFp32), 4 * (kActivations + kModulations));
  for (const parallel::MeshShape& shape : {parallel::MeshShape{.ulysses = 2}, parallel::MeshShape{.tensor = 2}}) {
    EXPECT_EQ(bytes(shape, Dtype::kBf16), 2 * 2 * (kActivations / 2 + kModulations));
  }
}

TEST(ModelCostTest, AGroupOnTheHostHasTemporariesAndSharesPasses) {
  const GroupShare host = ShareOf({.ring = 2, .ulysses = 3}, DeviceKind::kCpu, Dtype::kFp64);
  EXPECT_EQ(host.sequence, 6);
  EXPECT_EQ(host.element_bytes, 8);
  EXPECT_EQ(host.most_band_bytes, 3 * 64 * 1024.0 * 1024);
  EXPECT_TRUE(host.images_share_passes);
  const GroupShare device = ShareOf({}, DeviceKind::kCuda, Dtype::kBf16);
  EXPECT_EQ(device.most_band_bytes, 0);
  EXPECT_FALSE(device.images_share_passes);
}

// A picture of 96x80 pixels becomes one of 1104x944, the nearest of Kontext's sizes.
TEST(ModelCostTest, TokensOfReferencesCountAsText) {
  ModelCost cost{.token_side = 16, .text_tokens = 512, .references = ReferenceFit::kKontext};
  JobParameters job{.height = 64, .width = 64};
  EXPECT_EQ(WorkOf(cost, job).text_tokens, 512);
  job.images.push_back({.digest = std::string(64, 'a'), .width = 96, .height = 80});
  EXPECT_EQ(WorkOf(cost, job).text_tokens, 512 + 1104 / 16 * 944 / 16);
  cost.references = ReferenceFit::kFlux2;
  EXPECT_EQ(WorkOf(cost, job).text_tokens, 512 + 96 / 16 * 80 / 16);
  job.mask.push_back(job.images[0]);
  EXPECT_EQ(WorkOf(cost, job).text_tokens, 512 + 64 / 16 * 64 / 16) << "the image begins from it";
  cost.references = ReferenceFit::kNone;
  EXPECT_EQ(WorkOf(cost, job).text_tokens, 512);
}

TEST(ModelCostTest, AnImageWithoutASizeHasThePicturesProportionsAndTheModelsArea) {
  const ModelDescription model{
      .size_multiple = 16, .min_size = 64, .max_size = 2048, .default_height = 1024, .default_width = 1024};
  EXPECT_EQ(SizeLike(model, {.height = 500, .width = 500}), (ImageSize{.height = 1024, .width = 1024}));
  EXPECT_EQ(SizeLike(model, {.height = 1080, .width = 1920}), (ImageSize{.height = 768, .width = 1360}));
  EXPECT_EQ(SizeLike(model, {.height = 1, .width = 16384}), (ImageSize{.height = 64, .width = 2048}));
}

TEST(ModelCostTest, AnImageWithoutASizeHasTheSizeThatFlux2ReadsItsFirstPictureAt) {
  ModelDescription model{
      .size_multiple = 16, .min_size = 64, .max_size = 2048, .default_height = 1024, .default_width = 1024};
  const std::vector<PictureUse> pictures = {{.width = 151, .height = 97}, {.width = 512, .height = 512}};
  EXPECT_EQ(SizeOfPictures(model, pictures, false), SizeLike(model, {.height = 97, .width = 151}));
  model.pictures = {.use = PictureInput::kReference, .most = 2, .fit = ReferenceFit::kFlux2};
  EXPECT_EQ(SizeOfPictures(model, pictures, false), (ImageSize{.height = 96, .width = 144}));
}

}  // namespace
}  // namespace tessera::control
