#include "control/training/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace tessera::control {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kLeast[] = "model: emoji\noutput: run\ndatasets: [{folder_path: images}]\n";

std::string ErrorOf(const std::string& text) {
  const absl::StatusOr<TrainConfig> config = ParseTrainConfig(text);
  return config.ok() ? "" : std::string(config.status().message());
}

TrainConfig Config(const std::string& more = "") {
  const absl::StatusOr<TrainConfig> config = ParseTrainConfig(absl::StrCat(kLeast, more));
  EXPECT_TRUE(config.ok()) << config.status();
  return config.value_or(TrainConfig());
}

TEST(TrainConfigTest, AModelAnOutputAndAFolderAreEnough) {
  const TrainConfig config = Config();
  EXPECT_EQ(config.model, "emoji");
  ASSERT_EQ(config.datasets.size(), 1u);
  EXPECT_EQ(config.datasets[0], TrainDataset{.folder_path = "images"});
  EXPECT_EQ(config.network, TrainNetwork());
  EXPECT_EQ(config.train, TrainProcedure());
  EXPECT_EQ(parallel::NumRanks(config.parallelism.mesh()), 1);
}

TEST(TrainConfigTest, ReadsEveryKey) {
  const absl::StatusOr<TrainConfig> config = ParseTrainConfig(R"(
model: /models/flux
output: out
seed: 7
trigger_word: sks
datasets:
  - {folder_path: a, caption_ext: caption, caption_dropout_rate: 0.1, resolution: [512, 768], num_repeats: 2}
  - {folder_path: b, control_path: [x, y], resolution: 1024, is_reg: true, bad_images: skip, cache_latents_to_disk: false}
network: {type: lora, linear: 8, linear_alpha: 4, init: gaussian, target_modules: [attn.to_q, attn.to_k]}
train:
  steps: 2000
  batch_size: 4
  gradient_accumulation_steps: 3
  gradient_checkpointing: false
  lr: 2e-4
  lr_scheduler: warmup_stable_decay
  lr_warmup_steps: 100
  lr_decay_steps: 900
  low_discrepancy_timesteps: true
  weighting_scheme: logit_normal
  logit_mean: 0.5
  logit_std: 1.5
  mode_scale: 1.3
  prediction_type: v_prediction
  snr_gamma: 5
  guidance_scale: 3.5
  max_grad_norm: 0.5
  ema_decay: 0.99
  optimizer_params: {betas: [0.8, 0.95], eps: 1e-6, weight_decay: 0.1}
  dtype: fp32
  max_nonfinite_steps: 3
  max_loss_ratio: 1000
  quantize: true
  blocks_to_swap: 10
  assistant_adapter: assistant.safetensors
  break_distillation: true
sample: {sample_every: 100, prompts: ["a cat", "a dog"], samples: [{prompt: "a bird", ctrl_img: [p, q]}], seed: 3, steps: 20, guidance_scale: 4.5, width: 512, height: 768}
save: {save_every: 50, max_step_saves_to_keep: 2}
publish: {server: "https://[::1]:9090", adapter_folder: ad apters, name: sty-le, publish_every: 21,
          api_key_file: key, server_ca: ca.pem}
parallelism: {data: 2, tensor: 2, ulysses: 1, ring: 2, sequence_parallel: true, zero: 3}
)");
  ASSERT_TRUE(config.ok()) << config.status();
  TrainConfig expected;
  expected.model = "/models/flux";
  expected.output = "out";
  expected.seed = 7;
  expected.trigger_word = "sks";
  expected.datasets = {{.folder_path = "a",
                        .caption_ext = "caption",
                        .caption_dropout_rate = 0.1,
                        .resolution = {512, 768},
                        .num_repeats = 2},
                       {.folder_path = "b",
                        .control_path = {"x", "y"},
                        .resolution = {1024},
                        .is_reg = true,
                        .bad_images = BadImages::kSkip,
                        .cache_latents_to_disk = false}};
  expected.network = {
      .linear = 8, .linear_alpha = 4, .init = NetworkInit::kGaussian, .target_modules = {"attn.to_q", "attn.to_k"}};
  expected.train = {.steps = 2000,
                    .batch_size = 4,
                    .gradient_accumulation_steps = 3,
                    .gradient_checkpointing = false,
                    .lr = 2e-4,
                    .lr_scheduler = LearningRateSchedule::kWarmupStableDecay,
                    .lr_warmup_steps = 100,
                    .lr_decay_steps = 900,
                    .low_discrepancy_timesteps = true,
                    .weighting_scheme = WeightingScheme::kLogitNormal,
                    .logit_mean = 0.5,
                    .logit_std = 1.5,
                    .mode_scale = 1.3,
                    .prediction_type = TrainedPrediction::kVelocity,
                    .snr_gamma = 5,
                    .guidance_scale = 3.5,
                    .max_grad_norm = 0.5,
                    .ema_decay = 0.99,
                    .optimizer_params = {.betas = {0.8, 0.95}, .eps = 1e-6, .weight_decay = 0.1},
                    .dtype = TrainDtype::kFp32,
                    .max_nonfinite_steps = 3,
                    .max_loss_ratio = 1000,
                    .quantize = true,
                    .blocks_to_swap = 10,
                    .assistant_adapter = "assistant.safetensors",
                    .break_distillation = true};
  expected.sample = {.sample_every = 100,
                     .prompts = {"a cat", "a dog"},
                     .samples = {{.prompt = "a bird", .ctrl_img = {"p", "q"}}},
                     .seed = 3,
                     .steps = 20,
                     .guidance_scale = 4.5,
                     .width = 512,
                     .height = 768};
  expected.save = {.save_every = 50, .max_step_saves_to_keep = 2};
  expected.publish = {.server = "https://[::1]:9090",
                      .adapter_folder = "ad apters",
                      .name = "sty-le",
                      .publish_every = 21,
                      .api_key_file = "key",
                      .server_ca = "ca.pem"};
  expected.parallelism = {.data = 2, .tensor = 2, .ring = 2, .sequence_parallel = true, .zero = ZeroStage::kFull};
  EXPECT_EQ(*config, expected);
  EXPECT_EQ(config->parallelism.mesh(), (parallel::MeshShape{.data = 2, .ring = 2, .tensor = 2}));

  const absl::StatusOr<TrainConfig> again = ParseTrainConfig(TrainConfigJson(*config));
  ASSERT_TRUE(again.ok()) << again.status() << TrainConfigJson(*config);
  EXPECT_EQ(*again, *config);
}

TEST(TrainConfigTest, TheJsonOfADefaultAndOfAwkwardTextsReadsBack) {
  TrainConfig config = Config();
  config.trigger_word = "a \"b\" \\ # c: {d} \n\t\x01 é";
  config.train.lr = 0.1 + 0.2;
  const absl::StatusOr<TrainConfig> again = ParseTrainConfig(TrainConfigJson(config));
  ASSERT_TRUE(again.ok()) << again.status() << TrainConfigJson(config);
  EXPECT_EQ(*again, config);
}

TEST(TrainConfigTest, AlphaIsTheRankWhereTheFileDoesNotSayIt) {
  EXPECT_EQ(Config("network: {linear: 64}").network.linear_alpha, 64);
  EXPECT_EQ(Config("network: {linear_alpha: 1, linear: 64}").network.linear_alpha, 1);
}

TEST(TrainConfigTest, AMistakeNamesTheKeyItsValueWhatIsValidTheNearestAndTheLine) {
  const auto error = [](const std::string& more) { return ErrorOf(absl::StrCat(kLeast, more)); };
  EXPECT_EQ(error("network: {type: lroa}"),
            "network.type 'lroa' is unknown; valid values are lora, full; did you mean 'lora'? (line 4)");
  EXPECT_EQ(error("train: {batch_size: 0}"),
            "train.batch_size is 0; valid values are 1 to 65536, the nearest is 1 (line 4)");
  EXPECT_THAT(
      error("train: {gradient_checkpoint: true}"),
      AllOf(HasSubstr("key of train 'gradient_checkpoint' is unknown"),
            HasSubstr("; did you mean 'gradient_checkpointing'? valid values are steps, "), HasSubstr("(line 4)")));
  EXPECT_THAT(error("job: extension"), HasSubstr("key 'job' is unknown; valid values are model, output"));
  EXPECT_THAT(error("train: {max_loss_ratio: 0.5}"), HasSubstr("train.max_loss_ratio is 0.5; it must be more than 1"));
  EXPECT_THAT(error("parallelism: {zero: 2}"), HasSubstr("parallelism.zero '2' is unknown; valid values are 0, 1, 3"));
  EXPECT_EQ(error("train: {optimizer_params: {betas: [0.9]}}"),
            "train.optimizer_params.betas has 1 values; it must have 2, such as [0.9, 0.999]");
  EXPECT_THAT(error("train: {optimizer_params: {betas: [0.9, 1]}}"),
              HasSubstr("train.optimizer_params.betas is '1'; it must be a number from 0 to 1"));
  EXPECT_EQ(error("sample: {sample_every: 5}"),
            "sample.sample_every is 5 and sample.prompts is empty; name prompts, or set sample_every to 0");
  EXPECT_EQ(ErrorOf("output: x"), "model is missing; it has no default");
  EXPECT_EQ(ErrorOf("model: m\noutput: x"),
            "datasets is empty; it must be a list with at least one {folder_path: FOLDER}");
  EXPECT_EQ(ErrorOf("model: m\noutput: x\ndatasets: [{num_repeats: 2}]"),
            "datasets[0].folder_path is missing; it must be a folder with images");
  EXPECT_EQ(ErrorOf("model: m\noutput: x\ndatasets: [{folder_path: a}, {folder_path: b, resolution: [512, 8]}]"),
            "datasets[1].resolution is 8; valid values are 16 to 16384, the nearest is 16 (line 3)");
  EXPECT_EQ(ErrorOf("model: m\n\xff"), "the configuration is not UTF-8 at line 2");
}

TEST(TrainConfigTest, WhatContradictsIsRefused) {
  const auto error = [](const std::string& more) { return ErrorOf(absl::StrCat(kLeast, more)); };
  EXPECT_EQ(error("train: {batch_size: 3}\nparallelism: {data: 2}"),
            "train.batch_size is 3; it must be a multiple of parallelism.data, which is 2, the nearest is 2");
  EXPECT_THAT(error("train: {batch_size: 7}\nparallelism: {data: 4}"), HasSubstr("the nearest is 8"));
  EXPECT_THAT(error("train: {batch_size: 1}\nparallelism: {data: 4}"), HasSubstr("the nearest is 4"));
  EXPECT_EQ(error("train: {batch_size: 4}\nparallelism: {data: 4, ulysses: 4}"),
            "parallelism is data 4 × tensor 1 × ulysses 4 × ring 1 × pipe 1 = 16 ranks; valid values are 1 to 8");
  EXPECT_THAT(error("network: {type: full}\ntrain: {quantize: true}"), HasSubstr("network.type must be lora"));
  EXPECT_THAT(error("network: {type: full}\ntrain: {blocks_to_swap: 3}"), HasSubstr("train.blocks_to_swap is 3"));
  EXPECT_THAT(error("train: {lr_scheduler: warmup_stable_decay}"),
              HasSubstr("it must be more than 0 for warmup_stable_decay"));
  EXPECT_THAT(error("train: {lr_decay_steps: 3}"),
              HasSubstr("train.lr_decay_steps is 3 and train.lr_scheduler constant"));
  EXPECT_THAT(error("network: {from_scratch: true}"), HasSubstr("network.type must be full"));
  EXPECT_THAT(error("publish: {publish_every: 3}"), HasSubstr("publish.name is missing"));
  EXPECT_THAT(error("publish: {name: ../x}"), AllOf(HasSubstr("publish.name is '../x'"), HasSubstr("valid names")));
  EXPECT_THAT(error("publish: {name: x}"), HasSubstr("publish.server is missing"));
  EXPECT_THAT(error("publish: {name: x, server: s}"), HasSubstr("publish.adapter_folder is missing"));
  EXPECT_THAT(error("network: {type: full}\npublish: {name: x, server: s, adapter_folder: a}"),
              HasSubstr("network.type is full"));
  EXPECT_THAT(error("publish: {publsh_every: 3}"), HasSubstr("did you mean 'publish_every'"));
}

TEST(TrainConfigTest, AliasesAndDepthAreBounded) {
  std::string bomb = absl::StrCat(kLeast, "sample: {prompts: [&a x");
  for (int i = 0; i < 65; ++i) bomb += ", *a";
  EXPECT_THAT(ErrorOf(bomb + "]}"), HasSubstr("more than 64 aliases"));
  EXPECT_THAT(ErrorOf("model: [[[[[[[[[]]]]]]]]]"), HasSubstr("more than 8 levels"));
}

TEST(TrainConfigTest, AFileThatIsNotThereIsNamed) {
  const absl::StatusOr<TrainConfig> config = LoadTrainConfig("/nowhere/train.yaml");
  EXPECT_EQ(config.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(config.status().message()), HasSubstr("/nowhere/train.yaml"));
}

TEST(TrainConfigTest, AResumedRunMayHaveOtherStepsRateSamplesSavesAndTopology) {
  const TrainConfig before = Config();
  const TrainConfig now = Config(
      "train: {steps: 5, lr: 1, max_loss_ratio: 50}\nsample: {sample_every: 3, prompts: [x]}\nsave: {save_every: 9}\n"
      "publish: {name: x, server: s, adapter_folder: a, publish_every: 2}\n"
      "parallelism: {tensor: 2, zero: 1}");
  EXPECT_TRUE(CheckResumed(before, now).ok()) << CheckResumed(before, now);
}

TEST(TrainConfigTest, SoItMayHaveOtherPathsAndPoliciesWhichChangeNoSum) {
  TrainConfig now = Config();
  now.model += "/";
  now.output = "/elsewhere";
  now.train.gradient_checkpointing = !now.train.gradient_checkpointing;
  now.train.blocks_to_swap = 3;
  now.train.max_nonfinite_steps = 1;
  now.train.assistant_adapter = "/moved/assistant";
  now.train.break_distillation = true;
  TrainDataset& dataset = now.datasets.at(0);
  dataset.folder_path = "/moved/";
  dataset.control_path = {"/moved/", "/elsewhere"};
  dataset.bad_images = BadImages::kSkip;
  dataset.cache_latents_to_disk = dataset.cache_text_embeddings = false;
  EXPECT_TRUE(CheckResumed(Config(), now).ok()) << CheckResumed(Config(), now);
}

TEST(TrainConfigTest, WhereTheSamplesAreTheSameNoKeyThatLeadsToThemIsCompared) {
  TrainConfig now = Config();
  now.trigger_word = "t";
  now.datasets.at(0).caption_ext = ".txt";
  now.datasets.push_back(now.datasets[0]);
  const std::string error(CheckResumed(Config(), now).message());
  EXPECT_THAT(error, AllOf(HasSubstr("datasets[0].caption_ext was 'txt' and is '.txt'"),
                           HasSubstr("datasets[1].num_repeats was absent and is '1'"),
                           HasSubstr("trigger_word was '' and is 't'")));
  EXPECT_TRUE(CheckResumed(Config(), now, /*same_samples=*/true).ok());
  now.seed = 1;
  EXPECT_THAT(std::string(CheckResumed(Config(), now, /*same_samples=*/true).message()),
              AllOf(HasSubstr("seed was '0' and is '1'; only model, output, train.steps, "),
                    HasSubstr("parallelism, and of datasets folder_path, control_path, bad_images"),
                    Not(HasSubstr("trigger_word"))));
}

TEST(TrainConfigTest, WhateverElseChangedIsNamedWithBothValues) {
  const TrainConfig before = Config("train: {batch_size: 2, logit_mean: 0.12345678}");
  TrainConfig now = before;
  now.train.batch_size = 4;
  now.train.logit_mean = 0.12345679;
  now.train.steps = 1;
  now.datasets[0].resolution = {512};
  const std::string error(CheckResumed(before, now).message());
  EXPECT_THAT(error,
              AllOf(HasSubstr("train.batch_size was '2' and is '4'"),
                    HasSubstr("train.logit_mean was '0.12345678' and is '0.12345679'"),
                    HasSubstr("datasets[0].resolution[0] was absent and is '512'"), Not(HasSubstr("train.steps was"))));
}

TEST(TrainConfigTest, KeysOfEveryMappingTakePartInTheComparison) {
  const std::string json = TrainConfigJson(Config());
  for (const auto& [from, to] : std::vector<std::pair<std::string, std::string>>{
           {"\"seed\": 0", "\"seed\": 1"},
           {"\"trigger_word\": \"\"", "\"trigger_word\": \"t\""},
           {"\"linear\": 16", "\"linear\": 8"},
           {"\"linear_alpha\": 16", "\"linear_alpha\": 8"},
           {"\"init\": \"kaiming\"", "\"init\": \"gaussian\""},
           {"\"gradient_accumulation_steps\": 1", "\"gradient_accumulation_steps\": 2"},
           {"\"dtype\": \"bf16\"", "\"dtype\": \"fp32\""},
           {"\"prediction_type\": \"scheduler\"", "\"prediction_type\": \"epsilon\""},
           {"\"ema_decay\": 0", "\"ema_decay\": 0.5"},
           {"\"num_repeats\": 1", "\"num_repeats\": 2"},
           {"\"weight_decay\": 0.01", "\"weight_decay\": 0"}}) {
    const absl::StatusOr<TrainConfig> now = ParseTrainConfig(absl::StrReplaceAll(json, {{from, to}}));
    ASSERT_TRUE(now.ok()) << now.status();
    EXPECT_FALSE(CheckResumed(Config(), *now).ok()) << to;
  }
}

}  // namespace
}  // namespace tessera::control
