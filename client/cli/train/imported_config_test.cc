#include "client/cli/train/imported_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/train/config_template.h"

namespace tessera::client {
namespace {

using control::TrainConfig;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// As config/examples/train_lora_flux_24gb.yaml of ai-toolkit.
constexpr char kAiToolkit[] = R"(---
job: extension
config:
  name: "my_first_flux_lora_v1"
  process:
    - type: 'sd_trainer'
      training_folder: "output"
      performance_log_every: 1000
      device: cuda:0
      trigger_word: "p3r5on"
      network:
        type: "lora"
        linear: 16
        linear_alpha: 8
      save:
        dtype: float16
        save_every: 200
        max_step_saves_to_keep: 3
        push_to_hub: false
      datasets:
        - folder_path: "/path/to/images"
          caption_ext: "txt"
          caption_dropout_rate: 0.05
          shuffle_tokens: false
          cache_latents_to_disk: true
          resolution: [ 512, 768, 1024 ]
      train:
        batch_size: 2
        steps: 2000
        gradient_accumulation_steps: 3
        train_unet: true
        train_text_encoder: false
        gradient_checkpointing: true
        noise_scheduler: "flowmatch"
        optimizer: "adamw8bit"
        lr: 1e-4
        ema_config:
          use_ema: true
          ema_decay: 0.99
        dtype: bf16
      model:
        name_or_path: "black-forest-labs/FLUX.1-dev"
        is_flux: true
        quantize: true
      sample:
        sampler: "flowmatch"
        sample_every: 250
        width: 1024
        height: 768
        prompts:
          - "[trigger] holding a sign"
          - "a bear"
        neg: ""
        seed: 42
        walk_seed: true
        guidance_scale: 4
        sample_steps: 20
meta:
  name: "[name]"
  version: '1.0'
)";

// With the arguments of train_network.py of sd-scripts.
constexpr char kKohya[] = R"(
[model_arguments]
pretrained_model_name_or_path = "models/FLUX.1-dev"
clip_l = "models/clip_l.safetensors"
[saving]
output_dir = "output"
output_name = "cat"
save_every_n_steps = 100
save_last_n_steps = 300
save_precision = "bf16"
[network]
network_module = "networks.lora_flux"
network_dim = 8
network_alpha = 4
network_args = ["train_blocks=single"]
[training]
max_train_steps = 500
learning_rate = 1e-4
optimizer_type = "AdamW8bit"
optimizer_args = ["weight_decay=0.1", "betas=0.9,0.95", "d_coef=2"]
lr_scheduler = "cosine"
lr_warmup_steps = 0.1
gradient_accumulation_steps = 2
gradient_checkpointing = true
mixed_precision = "bf16"
seed = 42
max_grad_norm = 0.5
guidance_scale = 1.0
timestep_sampling = "shift"
discrete_flow_shift = 3.1582
fp8_base = true
blocks_to_swap = 18
sdpa = true
dataset_config = "images.toml"
sample_prompts = "prompts.txt"
sample_every_n_steps = 50
)";

constexpr char kKohyaImages[] = R"(
[general]
shuffle_caption = true
caption_extension = ".txt"
keep_tokens = 1
enable_bucket = true
[[datasets]]
resolution = [1024, 768]
batch_size = 4
  [[datasets.subsets]]
  image_dir = "images/cat"
  num_repeats = 10
  caption_dropout_rate = 0.1
  [[datasets.subsets]]
  image_dir = "images/others"
  class_tokens = "animal"
  is_reg = true
[[datasets]]
resolution = 512
  [[datasets.subsets]]
  image_dir = "images/small"
)";

constexpr char kPrompts[] =
    "# a comment\na red house --w 1024 --h 768 --d 7 --s 20 --l 3.5\n\na blue house --w 512 --n ugly\n";

class ImportedConfigTest : public testing::Test {
 protected:
  absl::StatusOr<ImportedConfig> Import(const std::string& text, const std::string& path,
                                        const std::string& model = "") const {
    const ImportFiles files = {.read = [this](const std::string& name) -> absl::StatusOr<std::string> {
                                 const auto file = files_.find(name);
                                 if (file == files_.end())
                                   return absl::NotFoundError(absl::StrCat(name, " does not exist"));
                                 return file->second;
                               },
                               .folders = [this](const std::string&) { return folders_; }};
    absl::StatusOr<ImportedConfig> imported = ImportConfig(text, path, model, files);
    if (!imported.ok()) return imported;
    const absl::StatusOr<TrainConfig> written =
        control::ParseTrainConfig(CommentedConfig(imported->config, imported->notes));
    EXPECT_TRUE(written.ok()) << written.status();
    if (written.ok()) {
      EXPECT_EQ(*written, imported->config);
    }
    return imported;
  }

  ImportedConfig Imported(const std::string& text, const std::string& path) const {
    absl::StatusOr<ImportedConfig> imported = Import(text, path);
    EXPECT_TRUE(imported.ok()) << imported.status();
    return imported.ok() ? *std::move(imported) : ImportedConfig();
  }

  std::string ErrorOf(const std::string& text, const std::string& path = "a.yaml") const {
    return std::string(Import(text, path).status().message());
  }

  std::map<std::string, std::string> files_ = {{"images.toml", kKohyaImages}, {"prompts.txt", kPrompts}};
  std::vector<std::string> folders_;
};

TEST_F(ImportedConfigTest, AFileOfAiToolkitIsARun) {
  const ImportedConfig imported = Imported(kAiToolkit, "flux.yaml");
  EXPECT_EQ(imported.program, "ai-toolkit");
  TrainConfig expected;
  expected.model = "black-forest-labs/FLUX.1-dev";
  expected.output = "output/my_first_flux_lora_v1";
  expected.trigger_word = "p3r5on";
  expected.datasets = {{.folder_path = "/path/to/images", .resolution = {512, 768, 1024}}};
  expected.network = {.linear = 16, .linear_alpha = 8, .target_modules = {"*transformer_blocks.*"}};
  expected.train.steps = 2000;
  expected.train.batch_size = 2;
  expected.train.gradient_accumulation_steps = 3;
  expected.train.ema_decay = 0.99;
  expected.train.quantize = true;
  expected.sample = {.sample_every = 250,
                     .prompts = {"p3r5on holding a sign", "a bear"},
                     .seed = 42,
                     .steps = 20,
                     .guidance_scale = 4,
                     .width = 1024,
                     .height = 768};
  expected.save = {.save_every = 200, .max_step_saves_to_keep = 3};
  EXPECT_EQ(imported.config, expected) << control::TrainConfigJson(imported.config);
  const std::string notes = absl::StrJoin(imported.notes, "\n");
  for (const char* note : {"config.process[0].train.optimizer is \"adamw8bit\": AdamW is used",
                           "config.process[0].sample.walk_seed is true",
                           "config.process[0].save.dtype is \"float16\": results are written in fp32",
                           "config.process[0].device is \"cuda:0\"",
                           "config.process[0].performance_log_every is 1000: there is no equivalent",
                           "meta.version is \"1.0\": there is no equivalent",
                           "off or empty, without an equivalent: config.process[0].save.push_to_hub, "
                           "config.process[0].datasets[0].shuffle_tokens"}) {
    EXPECT_THAT(notes, HasSubstr(note));
  }
  EXPECT_THAT(notes, Not(HasSubstr("train.lr ")));
  EXPECT_THAT(notes, Not(HasSubstr("linear")));
}

TEST_F(ImportedConfigTest, TheJobsOfAiToolkitsInterfaceAreJson) {
  const ImportedConfig imported = Imported(
      R"({"job": "extension", "config": {"name": "z", "process": [{"type": "diffusion_trainer", "training_folder": "/out",
          "network": {"type": "lora", "linear": 32, "linear_alpha": 32, "conv": 16,
                      "network_kwargs": {"ignore_if_contains": [], "only_if_contains": ["transformer.layers.7.attention"]}},
          "datasets": [{"folder_path": "/images", "caption_ext": ".caption", "resolution": 1024, "is_reg": true,
                        "num_repeats": 2, "default_caption": "a photo"}],
          "train": {"steps": "3000", "lr": 0.0001, "optimizer": "prodigy", "optimizer_params": {"weight_decay": 0.0001},
                    "timestep_type": "sigmoid", "dtype": "fp16", "lr_scheduler": "linear", "cache_text_embeddings": false},
          "model": {"name_or_path": "Tongyi-MAI/Z-Image-Turbo", "arch": "zimage:turbo", "qtype": "qfloat8",
                    "assistant_lora_path": "ostris/adapter.safetensors"},
          "sample": {"sample_every": 100, "samples": [{"prompt": "one", "seed": 1}, {"prompt": "two"}]}}]}})",
      "job.json");
  EXPECT_EQ(imported.config.train.assistant_adapter, "ostris/adapter.safetensors");
  EXPECT_EQ(imported.config.train.steps, 3000);
  EXPECT_EQ(imported.config.train.optimizer_params.weight_decay, 1e-4);
  EXPECT_EQ(imported.config.train.weighting_scheme, control::WeightingScheme::kLogitNormal);
  EXPECT_THAT(imported.config.network.target_modules, ElementsAre("*layers.7.attention*"));
  EXPECT_EQ(imported.config.datasets[0].caption_ext, "caption");
  EXPECT_FALSE(imported.config.datasets[0].cache_text_embeddings);
  EXPECT_THAT(imported.config.datasets[0].resolution, ElementsAre(1024));
  EXPECT_THAT(imported.config.sample.prompts, ElementsAre("one", "two"));
  const std::string notes = absl::StrJoin(imported.notes, "\n");
  for (const char* note :
       {"train.optimizer is \"prodigy\": AdamW is used, the only optimizer", "network.conv is 16",
        "datasets[0].default_caption is \"a photo\": there is no equivalent", "train.dtype is \"fp16\"",
        "train.lr_scheduler is \"linear\"", "sample.samples[0].seed is 1", "model.qtype is"}) {
    EXPECT_THAT(notes, HasSubstr(note));
  }
}

TEST_F(ImportedConfigTest, WithoutANetworkAiToolkitTrainsAllWeights) {
  const ImportedConfig imported = Imported(
      "config: {process: [{model: {name_or_path: a}, datasets: [{folder_path: b}], train: {lr: 1e-5}}]}", "a.yml");
  EXPECT_EQ(imported.config.network.type, control::NetworkType::kFull);
  EXPECT_EQ(imported.config.train.lr, 1e-5);
  EXPECT_EQ(imported.config.output, "output");
}

TEST_F(ImportedConfigTest, AFileOfKohyaIsARunWithItsImagesAndPrompts) {
  const ImportedConfig imported = Imported(kKohya, "config.toml");
  EXPECT_EQ(imported.program, "kohya's sd-scripts");
  TrainConfig expected;
  expected.model = "models/FLUX.1-dev";
  expected.output = "output/cat";
  expected.seed = 42;
  expected.datasets = {
      {.folder_path = "images/cat", .caption_dropout_rate = 0.1, .resolution = {887}, .num_repeats = 10},
      {.folder_path = "images/others", .caption_dropout_rate = 0, .resolution = {887}, .is_reg = true},
      {.folder_path = "images/small", .caption_dropout_rate = 0, .resolution = {512}}};
  expected.network = {.linear = 8, .linear_alpha = 4, .target_modules = {"*transformer_blocks.*"}};
  expected.train.steps = 500;
  expected.train.batch_size = 4;
  expected.train.gradient_accumulation_steps = 2;
  expected.train.lr_scheduler = control::LearningRateSchedule::kCosine;
  expected.train.lr_warmup_steps = 50;
  expected.train.max_grad_norm = 0.5;
  expected.train.optimizer_params = {.betas = {0.9, 0.95}, .weight_decay = 0.1};
  expected.train.quantize = true;
  expected.train.blocks_to_swap = 18;
  expected.sample = {.sample_every = 50,
                     .prompts = {"a red house", "a blue house"},
                     .seed = 7,
                     .steps = 20,
                     .guidance_scale = 3.5,
                     .width = 1024,
                     .height = 768};
  expected.save = {.save_every = 100, .max_step_saves_to_keep = 3};
  EXPECT_EQ(imported.config, expected) << control::TrainConfigJson(imported.config);
  const std::string notes = absl::StrJoin(imported.notes, "\n");
  for (const char* note :
       {"clip_l is \"models/clip_l.safetensors\": it is a part of the model's folder",
        "optimizer_args has \"d_coef=2\"", "timestep_sampling is \"shift\"",
        "discrete_flow_shift is 3.1582: there is no equivalent", "network_args is a list of 1 value",
        "images.toml: general.shuffle_caption is true: there is no equivalent",
        "images.toml: general.keep_tokens is 1: there is no equivalent",
        "images.toml: datasets[0].subsets[1].class_tokens is \"animal\"",
        "the prompt \"a blue house\" has \"--w 512\": all samples have the value of the first prompt",
        "the prompt \"a blue house\" has \"--n ugly\": there is no equivalent"}) {
    EXPECT_THAT(notes, HasSubstr(note));
  }
  EXPECT_THAT(notes, Not(HasSubstr("learning_rate")));
}

TEST_F(ImportedConfigTest, AFileOfImagesNeedsAModel) {
  EXPECT_THAT(ErrorOf(kKohyaImages, "images.toml"), HasSubstr("images.toml: it names no model; name one with --model"));
  const absl::StatusOr<ImportedConfig> imported = Import(kKohyaImages, "images.toml", "FLUX.1-dev");
  ASSERT_TRUE(imported.ok()) << imported.status();
  EXPECT_EQ(imported->config.model, "FLUX.1-dev");
  EXPECT_EQ(imported->config.output, "train-imported");
  EXPECT_EQ(imported->config.datasets.size(), 3u);
  EXPECT_EQ(imported->config.network, control::TrainNetwork()) << "the file says nothing about it";
  EXPECT_EQ(imported->config.train.lr, TrainConfig().train.lr);
}

TEST_F(ImportedConfigTest, TheFoldersOfATrainDataDirHaveTheirRepeatsInTheirNames) {
  const std::string text = R"({"pretrained_model_name_or_path": "m", "LoRA_type": "Flux1", "network_dim": 16,
      "network_alpha": 16, "train_data_dir": "data", "max_resolution": "512,512", "epoch": 3, "max_train_steps": 0,
      "lr_warmup": 10, "learning_rate": 0.0002, "optimizer": "AdamW", "mixed_precision": "no", "xformers": "sdpa",
      "caption_extension": "", "noise_offset": 0, "v2": false})";
  folders_ = {"10_a cat", "2_dog", "log", "0_none"};
  const ImportedConfig imported = Imported(text, "gui.json");
  ASSERT_EQ(imported.config.datasets.size(), 2u);
  EXPECT_EQ(imported.config.datasets[0].folder_path, "data/10_a cat");
  EXPECT_EQ(imported.config.datasets[0].num_repeats, 10);
  EXPECT_EQ(imported.config.datasets[0].caption_ext, "caption");
  EXPECT_EQ(imported.config.datasets[1].num_repeats, 2);
  EXPECT_EQ(imported.config.train.steps, 1600);
  EXPECT_EQ(imported.config.train.lr_warmup_steps, 160);
  EXPECT_EQ(imported.config.train.dtype, control::TrainDtype::kFp32);
  EXPECT_THAT(imported.notes, Contains(HasSubstr("epoch is 3: train.steps is 1600; for epochs")));
  EXPECT_THAT(imported.notes, Contains("off or empty, without an equivalent: noise_offset, v2"));
  folders_ = {"log"};
  const ImportedConfig plain = Imported(text, "gui.json");
  ASSERT_EQ(plain.config.datasets.size(), 1u);
  EXPECT_EQ(plain.config.datasets[0].folder_path, "data");
  EXPECT_EQ(plain.config.datasets[0].num_repeats, 1);
  EXPECT_THAT(plain.notes, Contains(HasSubstr("data has no folders named REPEATS_NAME")));
}

TEST_F(ImportedConfigTest, WhatIsNoConfigurationOfEitherIsRefused) {
  EXPECT_THAT(ErrorOf("model: a\noutput: b\n"), HasSubstr("a.yaml: it is no configuration of ai-toolkit"));
  EXPECT_THAT(ErrorOf("- 1"), HasSubstr("not a mapping of settings"));
  EXPECT_THAT(ErrorOf("a: [b"), AllOf(HasSubstr("a.yaml: "), HasSubstr("line")));
  EXPECT_THAT(ErrorOf("a = ", "a.toml"), HasSubstr("a.toml: not TOML"));
  EXPECT_THAT(ErrorOf("{", "a.json"), HasSubstr("a.json"));
  EXPECT_THAT(ErrorOf("dataset_config = 'none.toml'", "a.toml"),
              HasSubstr("dataset_config is none.toml, which cannot be read: none.toml does not exist"));
  EXPECT_THAT(ErrorOf("config: {process: [{model: {name_or_path: a}}]}"), HasSubstr("datasets is empty"));
  EXPECT_THAT(
      ErrorOf("config: {process: [{model: {name_or_path: a}, datasets: [{folder_path: b}], train: {steps: -1}}]}"),
      AllOf(HasSubstr("a.yaml: train.steps is -1; valid values are 1 to"), Not(HasSubstr("line"))));
}

TEST_F(ImportedConfigTest, AValueOfAnotherTypeIsNotedAndNotUsed) {
  const ImportedConfig imported = Imported(
      "config: {process: [{model: {name_or_path: a}, network: {linear: [1]}, datasets: [{folder_path: b}], "
      "train: {lr: fast, steps: 1.5, gradient_checkpointing: 7}}]}",
      "a.yaml");
  EXPECT_EQ(imported.config.train.lr, TrainConfig().train.lr);
  EXPECT_EQ(imported.config.train.steps, TrainConfig().train.steps);
  const std::string notes = absl::StrJoin(imported.notes, "\n");
  EXPECT_THAT(notes, HasSubstr("train.lr is \"fast\"; not used, because it is not a number"));
  EXPECT_THAT(notes, HasSubstr("train.steps is 1.5; not used, because it is not a whole number"));
  EXPECT_THAT(notes, HasSubstr("train.gradient_checkpointing is 7; not used, because it is not true or false"));
  EXPECT_THAT(notes, HasSubstr("network.linear is a list of 1 value; not used"));
}

// Every setting of a file is either in the configuration or in a note: each one that is added unread is named.
TEST_F(ImportedConfigTest, NoSettingIsDroppedWithoutANote) {
  for (const auto& [text, path] : {std::pair{kAiToolkit, "a.yaml"}, {kKohya, "a.toml"}}) {
    const std::string added =
        absl::StrCat(text, std::string(path) == "a.yaml" ? "unheard_of: 5\n" : "unheard_of = 5\n");
    EXPECT_THAT(Imported(added, path).notes, Contains("unheard_of is 5: there is no equivalent"));
  }
}

TEST_F(ImportedConfigTest, PicturesThatAModelEditsAreFoldersOfTheImages) {
  const ImportedConfig imported = Imported(R"(
config:
  process:
    - type: sd_trainer
      network: {type: lora, linear: 16}
      datasets:
        - {folder_path: images, control_path: before}
        - {folder_path: more, control_path_1: one, control_path_2: two, control_path_3: null}
        - {folder_path: most, control_path: [first, second]}
        - {folder_path: none, control_path: null}
      model: {name_or_path: Qwen/Qwen-Image-Edit-2509, arch: qwen_image_edit_plus}
      sample:
        sample_every: 100
        samples:
          - {prompt: "a", ctrl_img_1: "1.png", ctrl_img_2: "2.png", ctrl_img_3: ""}
          - {prompt: "b", ctrl_img: "3.png"}
          - {prompt: "c"}
)",
                                           "edit.yaml");
  const std::vector<control::TrainDataset>& datasets = imported.config.datasets;
  ASSERT_EQ(datasets.size(), 4u);
  EXPECT_THAT(datasets[0].control_path, ElementsAre("before"));
  EXPECT_THAT(datasets[1].control_path, ElementsAre("one", "two"));
  EXPECT_THAT(datasets[2].control_path, ElementsAre("first", "second"));
  EXPECT_THAT(datasets[3].control_path, IsEmpty());
  EXPECT_THAT(imported.config.sample.samples,
              ElementsAre(control::TrainSamplePrompt{.prompt = "a", .ctrl_img = {"1.png", "2.png"}},
                          control::TrainSamplePrompt{.prompt = "b", .ctrl_img = {"3.png"}}));
  EXPECT_THAT(imported.config.sample.prompts, ElementsAre("c"));
  EXPECT_THAT(absl::StrJoin(imported.notes, "\n"), Not(AnyOf(HasSubstr("control"), HasSubstr("ctrl"))));
}

TEST_F(ImportedConfigTest, SoAreThoseOfKohyaAndMusubi) {
  const absl::StatusOr<ImportedConfig> imported = Import(R"(
[general]
resolution = [1024, 1024]
caption_extension = ".txt"
batch_size = 2
[[datasets]]
image_directory = "targets"
control_directory = "before"
cache_directory = "cache"
no_resize_control = true
[[datasets]]
  [[datasets.subsets]]
  image_dir = "images"
  conditioning_data_dir = "conditions"
)",
                                                         "images.toml", "FLUX.1 Kontext");
  ASSERT_TRUE(imported.ok()) << imported.status();
  ASSERT_EQ(imported->config.datasets.size(), 2u);
  EXPECT_EQ(imported->config.datasets[0].folder_path, "targets");
  EXPECT_THAT(imported->config.datasets[0].control_path, ElementsAre("before"));
  EXPECT_THAT(imported->config.datasets[0].resolution, ElementsAre(1024));
  EXPECT_EQ(imported->config.datasets[1].folder_path, "images");
  EXPECT_THAT(imported->config.datasets[1].control_path, ElementsAre("conditions"));
  const std::string notes = absl::StrJoin(imported->notes, "\n");
  EXPECT_THAT(notes, HasSubstr("datasets[0].no_resize_control is true: pictures to edit have the size"));
  EXPECT_THAT(notes, HasSubstr("datasets[0].cache_directory is \"cache\": encoded pictures"));
  EXPECT_THAT(notes, Not(HasSubstr("control_directory")));
}

}  // namespace
}  // namespace tessera::client
