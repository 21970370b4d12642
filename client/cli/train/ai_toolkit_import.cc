// Reads the configuration of ai-toolkit. Source: ostris/ai-toolkit, config/examples and toolkit/config_modules.py.
#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "client/cli/train/imported_config.h"

namespace tessera::client {
namespace {

using control::TrainConfig;

// Reads the process whose settings begin with `prefix`.
class Process {
 public:
  Process(const std::string& prefix, ForeignConfig& foreign, TrainConfig& config)
      : prefix_(prefix), foreign_(foreign), config_(config) {}

  void Read() {
    config_.trigger_word = foreign_.Text(Key("trigger_word")).value_or("");
    Model();
    Network();
    Train();
    Datasets();
    Save();
    Sample();
    foreign_.Note(Key("device"), "the option --device says where a run takes place");
  }

 private:
  std::string Key(const std::string& name) const { return absl::StrCat(prefix_, ".", name); }

  void SetInteger(const std::string& key, int64_t& value) { SetIfRead(foreign_.Integer(Key(key)), value); }
  void SetNumber(const std::string& key, double& value) { SetIfRead(foreign_.Number(Key(key)), value); }

  void Model() {
    SetIfRead(foreign_.Text(Key("model.name_or_path")), config_.model);
    SetIfRead(foreign_.Flag(Key("model.quantize")), config_.train.quantize);
    SetIfRead(foreign_.Text(Key("model.assistant_lora_path")), config_.train.assistant_adapter);
    // The family is read from the model's own files.
    arch_ = foreign_.Text(Key("model.arch")).value_or("");
    for (const char* flag : {"is_flux", "is_v3", "is_pixart", "is_lumina2"}) {
      if (foreign_.Flag(Key(absl::StrCat("model.", flag))).value_or(false) && arch_.empty()) arch_ = flag;
    }
    foreign_.Note(Key("model.quantize_te"), "text encoders are needed only until all captions are encoded");
    foreign_.Note(Key("model.qtype"), "train.quantize has eight bits with a scale for each row");
    foreign_.Note(Key("model.low_vram"), "train.blocks_to_swap keeps weights of blocks in host memory");
  }

  // By default ai-toolkit trains all linear layers of the blocks.
  std::vector<std::string> TargetsOfArch() {
    if (absl::StartsWith(arch_, "zimage") || arch_ == "is_lumina2") return {"layers.*"};
    for (const char* family : {"flux", "is_flux", "qwen_image", "sd3", "is_v3", "pixart", "is_pixart"}) {
      if (absl::StartsWith(arch_, family)) return {"*transformer_blocks.*"};
    }
    foreign_.Remark(
        "network.target_modules is not set, because the file does not say which family the model is of: the attention "
        "is "
        "trained, where ai-toolkit trains all linear layers of the blocks; set it to a pattern or to all-linear");
    return {};
  }

  void Network() {
    if (!foreign_.Has(Key("network"))) {
      config_.network.type = control::NetworkType::kFull;
      return;
    }
    const std::string type = foreign_.Text(Key("network.type")).value_or("lora");
    if (type != "lora") foreign_.Note(Key("network.type"), "lora is used, the only kind of adapter that is trained");
    for (const char* rank : {"network.rank", "network.linear"}) SetInteger(rank, config_.network.linear);
    config_.network.linear_alpha = static_cast<double>(config_.network.linear);
    for (const char* alpha : {"network.alpha", "network.linear_alpha"}) {
      SetNumber(alpha, config_.network.linear_alpha);
    }
    foreign_.Note(Key("network.conv"), "the transformers have no convolutions to train");
    foreign_.Note(Key("network.conv_alpha"), "the transformers have no convolutions to train");
    const std::vector<std::string> parts = foreign_.Texts(Key("network.network_kwargs.only_if_contains"));
    if (parts.empty()) {
      config_.network.target_modules = TargetsOfArch();
      return;
    }
    for (absl::string_view part : parts) {
      absl::ConsumePrefix(&part, "transformer.");
      config_.network.target_modules.push_back(absl::StrCat("*", part, "*"));
    }
  }

  void Train() {
    control::TrainProcedure& train = config_.train;
    SetInteger("train.steps", train.steps);
    SetInteger("train.batch_size", train.batch_size);
    for (const char* key : {"train.gradient_accumulation", "train.gradient_accumulation_steps"}) {
      SetInteger(key, train.gradient_accumulation_steps);
    }
    SetIfRead(foreign_.Flag(Key("train.gradient_checkpointing")), train.gradient_checkpointing);
    SetNumber("train.lr", train.lr);
    ImportOptimizer(Key("train.optimizer"), foreign_, config_);
    SetNumber("train.optimizer_params.weight_decay", train.optimizer_params.weight_decay);
    SetNumber("train.optimizer_params.eps", train.optimizer_params.eps);
    const std::vector<double> betas = foreign_.Numbers(Key("train.optimizer_params.betas"));
    if (!betas.empty()) train.optimizer_params.betas = betas;
    ImportSchedule(Key("train.lr_scheduler"), foreign_, config_);
    for (const char* key : {"train.lr_scheduler_params.num_warmup_steps", "train.lr_scheduler_params.warmup_steps"}) {
      SetInteger(key, train.lr_warmup_steps);
    }
    SetNumber("train.max_grad_norm", train.max_grad_norm);
    for (const char* key : {"train.snr_gamma", "train.min_snr_gamma"}) SetNumber(key, train.snr_gamma);
    ImportDtype(Key("train.dtype"), foreign_, config_);
    if (foreign_.Flag(Key("train.ema_config.use_ema")).value_or(false)) train.ema_decay = 0.99;
    if (train.ema_decay > 0) {
      SetNumber("train.ema_config.ema_decay", train.ema_decay);
    } else {
      foreign_.Take(Key("train.ema_config.ema_decay"));
    }
    Timesteps();
    // What this program does in any case.
    foreign_.Take(Key("train.noise_scheduler"));
    if (!foreign_.Flag(Key("train.train_unet")).value_or(true)) {
      foreign_.Remark(absl::StrCat(Key("train.train_unet"), " is false: the transformer is trained"));
    }
    foreign_.Note(Key("train.train_text_encoder"), "text encoders are not trained");
    if (foreign_.Text(Key("train.loss_type")).value_or("mse") != "mse") {
      foreign_.Note(Key("train.loss_type"), "the loss is the mean squared error");
    }
    if (!foreign_.Flag(Key("train.skip_first_sample")).value_or(true)) {
      foreign_.Remark(
          absl::StrCat(Key("train.skip_first_sample"), " is false: no sample is made before the first step"));
    }
    const std::optional<bool> unload = foreign_.Flag(Key("train.unload_text_encoder"));
    if (unload.value_or(false)) {
      foreign_.Note(Key("train.unload_text_encoder"), "captions are encoded once, before the first step, in any case");
    }
    caches_texts_ = foreign_.Flag(Key("train.cache_text_embeddings"));
  }

  void Timesteps() {
    const std::string type = foreign_.Text(Key("train.timestep_type")).value_or("linear");
    if (type == "sigmoid") {
      config_.train.weighting_scheme = control::WeightingScheme::kLogitNormal;
    } else if (type != "linear") {
      foreign_.Note(Key("train.timestep_type"), "timesteps are drawn evenly; see train.weighting_scheme");
    }
    const std::string bias = foreign_.Text(Key("train.content_or_style")).value_or("balanced");
    if (bias != "balanced") foreign_.Note(Key("train.content_or_style"), "timesteps are drawn without this bias");
  }

  // The value or values of a key and those of its numbered forms KEY_1, KEY_2, …, in this order, each once.
  std::vector<std::string> PicturesAt(const std::string& key, int most) {
    std::vector<std::string> paths = foreign_.Texts(key);
    for (int number = 1; number <= most; ++number) {
      const std::optional<std::string> path = foreign_.Text(absl::StrCat(key, "_", number));
      if (path.has_value() && std::ranges::find(paths, *path) == paths.end()) paths.push_back(*path);
    }
    return paths;
  }

  void Datasets() {
    for (size_t i = 0; i < foreign_.Count(Key("datasets")); ++i) {
      const auto key = [&](const char* name) { return Key(absl::StrCat("datasets[", i, "].", name)); };
      control::TrainDataset& dataset = config_.datasets.emplace_back();
      for (const char* folder : {"dataset_path", "folder_path"})
        SetIfRead(foreign_.Text(key(folder)), dataset.folder_path);
      dataset.control_path = PicturesAt(key("control_path"), /*most=*/3);
      SetIfRead(foreign_.Text(key("caption_ext")), dataset.caption_ext);
      dataset.caption_ext = WithoutPoint(dataset.caption_ext);
      SetIfRead(foreign_.Number(key("caption_dropout_rate")), dataset.caption_dropout_rate);
      for (const double side : foreign_.Numbers(key("resolution"))) {
        if (side >= 1 && side < 1e6) dataset.resolution.push_back(static_cast<int64_t>(side));
      }
      SetIfRead(foreign_.Integer(key("num_repeats")), dataset.num_repeats);
      SetIfRead(foreign_.Flag(key("is_reg")), dataset.is_reg);
      SetIfRead(foreign_.Flag(key("cache_latents_to_disk")), dataset.cache_latents_to_disk);
      SetIfRead(caches_texts_, dataset.cache_text_embeddings);
      SetIfRead(foreign_.Flag(key("cache_text_embeddings")), dataset.cache_text_embeddings);
      foreign_.Take(key("cache_latents"));  // they are cached in any case
      foreign_.Take(key("enable_ar_bucket"));
    }
  }

  void Save() {
    SetInteger("save.save_every", config_.save.save_every);
    SetInteger("save.max_step_saves_to_keep", config_.save.max_step_saves_to_keep);
    foreign_.Note(Key("save.dtype"), "results are written in fp32");
  }

  std::string Prompt(const std::string& prompt) const {
    return absl::StrReplaceAll(prompt, {{"[trigger]", config_.trigger_word}});
  }

  void Sample() {
    control::TrainSample& sample = config_.sample;
    SetInteger("sample.sample_every", sample.sample_every);
    SetInteger("sample.width", sample.width);
    SetInteger("sample.height", sample.height);
    SetInteger("sample.seed", sample.seed);
    SetNumber("sample.guidance_scale", sample.guidance_scale);
    SetInteger("sample.sample_steps", sample.steps);
    for (const std::string& prompt : foreign_.Texts(Key("sample.prompts"))) sample.prompts.push_back(Prompt(prompt));
    for (size_t i = 0; i < foreign_.Count(Key("sample.samples")); ++i) {
      const std::string name = Key(absl::StrCat("sample.samples[", i, "]"));
      const std::optional<std::string> prompt = foreign_.Text(name + ".prompt");
      const std::vector<std::string> pictures = PicturesAt(name + ".ctrl_img", /*most=*/3);
      if (!prompt.has_value()) continue;
      if (pictures.empty()) {
        sample.prompts.push_back(Prompt(*prompt));
      } else {
        sample.samples.push_back({.prompt = Prompt(*prompt), .ctrl_img = pictures});
      }
    }
    if (foreign_.Flag(Key("train.disable_sampling")).value_or(false)) sample.sample_every = 0;
    const std::string sampler = foreign_.Text(Key("sample.sampler")).value_or("flowmatch");
    if (sampler != "flowmatch") foreign_.Note(Key("sample.sampler"), "samples are made with the model's own sampler");
    foreign_.Note(Key("sample.neg"), "samples have no negative prompt");
    foreign_.Note(Key("sample.walk_seed"), "all samples have the seed sample.seed");
    for (const char* single : {"sample.num_frames", "sample.fps"}) {
      if (foreign_.Integer(Key(single)).value_or(1) != 1) foreign_.Note(Key(single), "samples are pictures");
    }
  }

  const std::string prefix_;
  ForeignConfig& foreign_;
  TrainConfig& config_;
  std::string arch_;  // as ai-toolkit names it, or the flag that stands for it
  std::optional<bool> caches_texts_;
};

}  // namespace

absl::Status ImportAiToolkit(ForeignConfig& foreign, ImportedConfig& imported) {
  const std::string prefix = "config.process[0]";
  TrainConfig& config = imported.config;
  foreign.Take("job");
  const std::string type = foreign.Text(prefix + ".type").value_or("sd_trainer");
  if (type != "sd_trainer" && type != "diffusion_trainer" && type != "ui_trainer") {
    foreign.Note(prefix + ".type", "it is imported as the training of a model on images with captions");
  }
  const std::string name = foreign.Text("config.name").value_or("");
  config.output = foreign.Text(prefix + ".training_folder").value_or("output");
  if (!name.empty()) absl::StrAppend(&config.output, "/", absl::StrReplaceAll(name, {{"/", "_"}}));
  Process(prefix, foreign, config).Read();
  return absl::OkStatus();
}

}  // namespace tessera::client
