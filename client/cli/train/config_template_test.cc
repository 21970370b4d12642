#include "client/cli/train/config_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "control/model/model_description.h"

namespace tessera::client {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

control::ModelDescription Model() {
  control::ModelDescription model;
  model.pipeline = "PixArtSigmaPipeline";
  model.family = "pixart";
  model.blocks = 8;
  model.heads = 4;
  model.components = {{.name = "transformer", .role = control::ComponentRole::kTransformer, .parameters = 9 << 20}};
  model.transformer.exchange.width = 256;
  model.transformer.exchange.blocks.assign(8, {.kind = parallel::BlockKind::kCross});
  model.cost.token_side = 8;
  return model;
}

control::TrainingSet Images() {
  return {.buckets = {{48, 80}, {64, 64}},
          .samples = {{.path = "a.png", .bucket = 1}, {.path = "b.png", .bucket = 0}, {.path = "c.png", .bucket = 1}},
          .left_out = {{"d\n.png", "the file is cut short"}}};
}

// Every setting differs from its default, so that a setting that is not written is noticed.
control::TrainConfig EverythingElse() {
  control::TrainConfig config;
  config.model = "a \"model\"";
  config.output = "out # put";
  config.seed = 5;
  config.trigger_word = "é: {x}";
  config.datasets = {{.folder_path = "/a b/c",
                      .caption_ext = "caption",
                      .caption_dropout_rate = 0.125,
                      .resolution = {64, 128},
                      .num_repeats = 3,
                      .is_reg = true,
                      .bad_images = control::BadImages::kSkip,
                      .cache_latents_to_disk = false},
                     {.folder_path = "other"}};
  config.network = {.type = control::NetworkType::kLora,
                    .linear = 8,
                    .linear_alpha = 2.5,
                    .init = control::NetworkInit::kGaussian,
                    .target_modules = {"to_q", "to_k"}};
  config.train = {.steps = 7,
                  .batch_size = 4,
                  .gradient_accumulation_steps = 3,
                  .gradient_checkpointing = false,
                  .lr = 3e-5,
                  .lr_scheduler = control::LearningRateSchedule::kWarmupStableDecay,
                  .lr_warmup_steps = 2,
                  .lr_decay_steps = 3,
                  .low_discrepancy_timesteps = true,
                  .weighting_scheme = control::WeightingScheme::kMode,
                  .logit_mean = 0.25,
                  .logit_std = 2,
                  .mode_scale = 1.5,
                  .prediction_type = control::TrainedPrediction::kVelocity,
                  .snr_gamma = 5,
                  .guidance_scale = 3.5,
                  .max_grad_norm = 2,
                  .ema_decay = 0.999,
                  .optimizer_params = {.betas = {0.8, 0.95}, .eps = 1e-7, .weight_decay = 0.125},
                  .dtype = control::TrainDtype::kFp32,
                  .max_nonfinite_steps = 3,
                  .max_loss_ratio = 500,
                  .quantize = true,
                  .blocks_to_swap = 2};
  config.sample = {.sample_every = 9,
                   .prompts = {"one", "two: \"three\""},
                   .seed = 4,
                   .steps = 11,
                   .guidance_scale = 2.5,
                   .width = 64,
                   .height = 32};
  config.save = {.save_every = 13, .max_step_saves_to_keep = 6};
  config.publish = {.server = "https://[::1]:9090",
                    .adapter_folder = "ad apters",
                    .name = "sty-le",
                    .publish_every = 21,
                    .api_key_file = "key",
                    .server_ca = "ca.pem"};
  config.parallelism = {
      .data = 2, .tensor = 2, .ulysses = 2, .sequence_parallel = true, .zero = control::ZeroStage::kFull};
  return config;
}

TEST(ConfigTemplateTest, WhatIsWrittenReadsBackAsTheSame) {
  const control::TrainConfig config = EverythingElse();
  const std::string text = ConfigTemplate({.config = config, .model = Model(), .images = Images()});
  const absl::StatusOr<control::TrainConfig> read = control::ParseTrainConfig(text);
  ASSERT_TRUE(read.ok()) << read.status() << "\n" << text;
  EXPECT_EQ(*read, config) << text;
}

TEST(ConfigTemplateTest, CommentsNameBucketsLeftOutImagesMemoryAndChoices) {
  const control::TrainConfig config = EverythingElse();
  const std::string text = ConfigTemplate({.config = config, .model = Model(), .images = Images()});
  EXPECT_THAT(text,
              AllOf(HasSubstr("PixArtSigmaPipeline (family pixart, 8 blocks, 4 heads)"),
                    HasSubstr("Found here: 3 images. Buckets:\n"), HasSubstr("48x80  1 image\n"),
                    HasSubstr("64x64  2 images\n"), HasSubstr("1 image is left out: d?.png (the file is cut short)"),
                    HasSubstr("Predicted memory of a rank: "), HasSubstr(" (3.4 MiB of weights, "),
                    HasSubstr("activations at 64x64), "), HasSubstr("# constant, cosine, warmup_stable_decay\n")));
}

}  // namespace
}  // namespace tessera::client
