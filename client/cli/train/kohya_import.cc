// Reads the configuration of kohya's sd-scripts: the arguments of its training scripts as TOML, its file of images, and
// the JSON file of its graphical interface. Source: kohya-ss/sd-scripts, config_README-en.md,
// library/train_util.py, flux_train_network.py; bmaltais/kohya_ss for the JSON.
#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/macros/status_macros.h"
#include "client/cli/train/imported_config.h"

namespace tessera::client {
namespace {

using control::TrainConfig;

constexpr int64_t kDefaultSteps = 1600;  // of sd-scripts
constexpr double kDefaultRate = 2e-6;
constexpr char kCaptionExtension[] = ".caption";

// Returns the side of the square with the area of "1024", "1024,1024" or [1024, 768].
std::vector<int64_t> Resolution(const std::string& key, ForeignConfig& foreign) {
  std::vector<double> sides;
  const std::vector<std::string> texts = foreign.Texts(key);
  const std::vector<std::string> parts =
      texts.size() == 1 ? std::vector<std::string>(absl::StrSplit(texts[0], ',')) : texts;
  for (const std::string& part : parts) {
    double side = 0;
    if (!absl::SimpleAtod(part, &side) || !(side > 0) || !(side < 1e6)) {
      foreign.Note(key, "it is not used, because it is neither a size nor two");
      return {};
    }
    sides.push_back(side);
  }
  if (sides.empty()) return {};
  const double area = sides.size() > 1 ? sides[0] * sides[1] : sides[0] * sides[0];
  return {static_cast<int64_t>(std::lround(std::sqrt(area)))};
}

// Reads one list of images: datasets[i].subsets[j], with what the levels above it set.
class Images {
 public:
  Images(ForeignConfig& foreign, const control::TrainDataset& defaults) : foreign_(foreign), defaults_(defaults) {}

  void Read(std::vector<control::TrainDataset>& datasets) {
    const control::TrainDataset general = At("general", defaults_);
    for (size_t i = 0; i < foreign_.Count("datasets"); ++i) {
      const std::string name = absl::StrCat("datasets[", i, "]");
      const control::TrainDataset dataset = At(name, general);
      for (size_t j = 0; j < foreign_.Count(name + ".subsets"); ++j) {
        const std::string subset = absl::StrCat(name, ".subsets[", j, "]");
        control::TrainDataset images = At(subset, dataset);
        SetIfRead(foreign_.Text(subset + ".image_dir"), images.folder_path);
        foreign_.Note(subset + ".class_tokens",
                      "it is not used; give captions, or set trigger_word to it if the folder has none");
        foreign_.Note(subset + ".metadata_file", "captions are read from metadata.jsonl or caption files");
        SetFolder(subset + ".conditioning_data_dir", images.control_path);
        if (!images.folder_path.empty()) datasets.push_back(std::move(images));
      }
      ReadMusubi(name, dataset, datasets);
    }
  }
  std::optional<int64_t> batch_size() const { return batch_size_; }

 private:
  // musubi-tuner has no subsets: the images are those of the dataset.
  void ReadMusubi(const std::string& name, control::TrainDataset images, std::vector<control::TrainDataset>& datasets) {
    SetIfRead(foreign_.Text(name + ".image_directory"), images.folder_path);
    SetFolder(name + ".control_directory", images.control_path);
    foreign_.Note(name + ".image_jsonl_file",
                  "images are listed in metadata.jsonl, as file_name, text and "
                  "control_file_names");
    foreign_.Note(name + ".cache_directory", "encoded pictures and captions are kept in the output");
    for (const char* size : {".no_resize_control", ".control_resolution", ".qwen_image_edit_no_resize_control"}) {
      foreign_.Note(name + size, "pictures to edit have the size at which the model reads them in serving");
    }
    if (!images.folder_path.empty()) datasets.push_back(std::move(images));
  }

  void SetFolder(const std::string& key, std::vector<std::string>& folders) {
    if (const std::optional<std::string> folder = foreign_.Text(key)) folders = {*folder};
  }

  // Every key may stand at every level.
  control::TrainDataset At(const std::string& level, control::TrainDataset images) {
    const auto key = [&](const char* name) { return absl::StrCat(level, ".", name); };
    if (const auto extension = foreign_.Text(key("caption_extension"))) images.caption_ext = WithoutPoint(*extension);
    SetIfRead(foreign_.Number(key("caption_dropout_rate")), images.caption_dropout_rate);
    SetIfRead(foreign_.Integer(key("num_repeats")), images.num_repeats);
    SetIfRead(foreign_.Flag(key("is_reg")), images.is_reg);
    if (foreign_.Has(key("resolution"))) images.resolution = Resolution(key("resolution"), foreign_);
    const std::optional<int64_t> batch = foreign_.Integer(key("batch_size"));
    if (batch.has_value() && batch_size_.value_or(*batch) != *batch) {
      foreign_.Note(key("batch_size"), "train.batch_size is that of the first datasets");
    } else if (batch.has_value()) {
      batch_size_ = batch;
    }
    if (!foreign_.Flag(key("enable_bucket")).value_or(true)) {
      foreign_.Remark(absl::StrCat(key("enable_bucket"), " is false: pictures keep their proportions in buckets"));
    }
    return images;
  }

  ForeignConfig& foreign_;
  const control::TrainDataset defaults_;
  std::optional<int64_t> batch_size_;
};

// Reads the arguments of a training script.
class Arguments {
 public:
  Arguments(ForeignConfig& foreign, const ImportFiles& files, ImportedConfig& imported)
      : foreign_(foreign), files_(files), imported_(imported), config_(imported.config) {}

  absl::Status Read() {
    // A file of images has nothing else.
    if (!HasKohyaArguments(foreign_)) return ReadImages();
    Model();
    Network();
    Train();
    Memory();
    Save();
    RETURN_IF_ERROR(ReadImages());
    return Sample();
  }

 private:
  void Model() {
    SetIfRead(foreign_.Text("pretrained_model_name_or_path"), config_.model);
    if (absl::EndsWith(config_.model, ".safetensors") || absl::EndsWith(config_.model, ".ckpt")) {
      foreign_.Note("pretrained_model_name_or_path",
                    "model must be a folder with a complete pipeline, as diffusers writes it, or a known name");
    }
    for (const char* part : {"clip_l", "clip_g", "t5xxl", "ae", "vae", "qwen3", "text_encoder", "dit"}) {
      foreign_.Note(part, "it is a part of the model's folder");
    }
    std::string output = foreign_.Text("output_dir").value_or("");
    const std::string name = foreign_.Text("output_name").value_or("");
    if (!output.empty() && !name.empty()) absl::StrAppend(&output, "/");
    config_.output = output + name;
    SetIfRead(foreign_.Integer("seed"), config_.seed);
    foreign_.Take("save_model_as");
    foreign_.Take("logging_dir");  // the log is in the output
    foreign_.Take("log_with");
  }

  void Network() {
    control::TrainNetwork& network = config_.network;
    const std::string module = foreign_.Text("network_module").value_or("");
    // The interface has the kind of an adapter; the scripts of all weights have no network.
    const std::string kind = foreign_.Text("LoRA_type").value_or("");
    const bool is_lora = !module.empty() || !kind.empty() || foreign_.Has("network_dim");
    if (!is_lora) network.type = control::NetworkType::kFull;
    if (!module.empty() && !absl::StartsWith(module, "networks.lora")) {
      foreign_.Note("network_module", "LoRA is used, the only kind of adapter that is trained");
    }
    if (!kind.empty() && kind != "Standard" && kind != "Flux1" && kind != "SD3") {
      foreign_.Note("LoRA_type", "LoRA is used, the only kind of adapter that is trained");
    }
    if (absl::StartsWith(module, "networks.lora_zimage")) network.target_modules = {"layers.*"};
    for (const char* family : {"networks.lora_flux", "networks.lora_sd3", "networks.lora_qwen_image"}) {
      // All linear layers of the blocks, as its networks say.
      if (absl::StartsWith(module, family)) network.target_modules = {"*transformer_blocks.*"};
    }
    if (is_lora) {
      network.linear = 4;  // of sd-scripts
      SetIfRead(foreign_.Integer("network_dim"), network.linear);
      network.linear_alpha = 1;
      SetIfRead(foreign_.Number("network_alpha"), network.linear_alpha);
    }
    foreign_.Note("network_args", "see network.target_modules for the choice of modules");
    foreign_.Note("conv_dim", "the transformers have no convolutions to train");
    foreign_.Note("conv_alpha", "the transformers have no convolutions to train");
    if (!foreign_.Flag("network_train_unet_only").value_or(true)) {
      foreign_.Remark("network_train_unet_only is false: text encoders are not trained");
    }
  }

  void Train() {
    control::TrainProcedure& train = config_.train;
    train.steps = kDefaultSteps;
    const std::optional<int64_t> steps = foreign_.Integer("max_train_steps");
    if (steps.value_or(0) > 0) train.steps = *steps;
    for (const char* epochs : {"max_train_epochs", "epoch"}) {
      foreign_.Note(epochs, absl::StrCat("train.steps is ", train.steps,
                                         "; for epochs set it to these times images and num_repeats, divided by the "
                                         "batch of a step"));
    }
    SetIfRead(foreign_.Integer("train_batch_size"), train.batch_size);
    SetIfRead(foreign_.Integer("gradient_accumulation_steps"), train.gradient_accumulation_steps);
    train.gradient_checkpointing = foreign_.Flag("gradient_checkpointing").value_or(false);
    train.lr = kDefaultRate;
    for (const char* rate : {"learning_rate", "unet_lr"}) {
      const std::optional<double> read = foreign_.Number(rate);
      if (read.value_or(0) > 0) train.lr = *read;
    }
    for (const char* rate : {"text_encoder_lr", "t5xxl_lr"}) foreign_.Note(rate, "text encoders are not trained");
    for (const char* key : {"optimizer_type", "optimizer"}) ImportOptimizer(key, foreign_, config_);
    OptimizerArguments();
    ImportSchedule("lr_scheduler", foreign_, config_);
    Warmup();
    ImportDtype("mixed_precision", foreign_, config_);
    SetIfRead(foreign_.Number("max_grad_norm"), train.max_grad_norm);
    SetIfRead(foreign_.Number("min_snr_gamma"), train.snr_gamma);
    SetIfRead(foreign_.Number("guidance_scale"), train.guidance_scale);
    Weighting();
  }

  // "weight_decay=0.01", "betas=0.9,0.99"
  void OptimizerArguments() {
    control::OptimizerParameters& parameters = config_.train.optimizer_params;
    std::vector<std::string> unknown;
    for (const std::string& argument : foreign_.Texts("optimizer_args")) {
      for (const absl::string_view word : absl::StrSplit(argument, ' ', absl::SkipWhitespace())) {
        const std::pair<std::string, std::string> parts = absl::StrSplit(word, absl::MaxSplits('=', 1));
        std::vector<double> numbers;
        bool is_known = true;
        for (absl::string_view number : absl::StrSplit(parts.second, ',')) {
          while (absl::ConsumePrefix(&number, "(") || absl::ConsumeSuffix(&number, ")")) {
          }
          is_known = absl::SimpleAtod(number, &numbers.emplace_back()) && is_known;
        }
        if (is_known && parts.first == "weight_decay" && numbers.size() == 1) {
          parameters.weight_decay = numbers[0];
        } else if (is_known && parts.first == "eps" && numbers.size() == 1) {
          parameters.eps = numbers[0];
        } else if (is_known && parts.first == "betas" && numbers.size() == 2) {
          parameters.betas = numbers;
        } else {
          unknown.emplace_back(word);
        }
      }
    }
    for (const std::string& word : unknown) {
      foreign_.Remark(absl::StrCat("optimizer_args has ", base::Quote(word), ": there is no equivalent"));
    }
  }

  // A number of steps, or a share of all; the graphical interface has percents.
  void Warmup() {
    const auto steps = static_cast<double>(config_.train.steps);
    const double typed = foreign_.Number("lr_warmup_steps").value_or(0);
    const double percent = foreign_.Number("lr_warmup").value_or(0);
    const double warmup = typed > 0 && typed < 1 ? typed * steps : typed > 0 ? typed : percent / 100 * steps;
    if (warmup >= 0 && warmup <= steps) config_.train.lr_warmup_steps = std::lround(warmup);
  }

  void Weighting() {
    control::TrainProcedure& train = config_.train;
    const std::string scheme = foreign_.Text("weighting_scheme").value_or("none");
    const std::optional<control::WeightingScheme> known = base::EnumOf<control::WeightingScheme>(scheme);
    if (known.has_value()) {
      train.weighting_scheme = *known;
    } else if (scheme != "uniform") {
      foreign_.Note("weighting_scheme", "timesteps are drawn evenly");
    }
    SetIfRead(foreign_.Number("logit_mean"), train.logit_mean);
    SetIfRead(foreign_.Number("logit_std"), train.logit_std);
    SetIfRead(foreign_.Number("mode_scale"), train.mode_scale);
    const std::string sampling = foreign_.Text("timestep_sampling").value_or("sigma");
    if (sampling == "sigmoid") {
      train.weighting_scheme = control::WeightingScheme::kLogitNormal;
    } else if (sampling != "sigma" && sampling != "uniform") {
      foreign_.Note("timestep_sampling", "timesteps are drawn evenly; see train.weighting_scheme");
    }
    if (foreign_.Text("model_prediction_type").value_or("raw") != "raw") {
      foreign_.Note("model_prediction_type", "the model's own prediction is trained");
    }
  }

  void Memory() {
    config_.train.quantize = foreign_.Flag("fp8_base").value_or(false);
    if (config_.network.type == control::NetworkType::kFull && config_.train.quantize) {
      config_.train.quantize = false;
      foreign_.Note("fp8_base", "weights that are trained are not quantized");
    }
    SetIfRead(foreign_.Integer("blocks_to_swap"), config_.train.blocks_to_swap);
    // These are done, or chosen by themselves, in any case.
    for (const char* always : {"sdpa", "xformers", "mem_eff_attn", "cache_latents", "cache_text_encoder_outputs",
                               "max_data_loader_n_workers", "persistent_data_loader_workers", "highvram", "lowram"}) {
      foreign_.Take(always);
    }
    images_.cache_latents_to_disk = foreign_.Flag("cache_latents_to_disk").value_or(true);
    images_.cache_text_embeddings = foreign_.Flag("cache_text_encoder_outputs_to_disk").value_or(true);
  }

  void Save() {
    config_.save.save_every = 0;
    SetIfRead(foreign_.Integer("save_every_n_steps"), config_.save.save_every);
    const std::optional<int64_t> last = foreign_.Integer("save_last_n_steps");
    if (last.value_or(0) > 0 && config_.save.save_every > 0) {
      config_.save.max_step_saves_to_keep = std::max<int64_t>(1, *last / config_.save.save_every);
    }
    foreign_.Note("save_every_n_epochs", "checkpoints are written by steps; see save.save_every");
    foreign_.Note("save_precision", "results are written in fp32");
    foreign_.Take("save_state");  // every checkpoint has the state
  }

  absl::Status ReadImages() {
    images_.caption_ext = WithoutPoint(foreign_.Text("caption_extension").value_or(kCaptionExtension));
    images_.caption_dropout_rate = foreign_.Number("caption_dropout_rate").value_or(0);
    for (const char* key : {"resolution", "max_resolution"}) {
      if (foreign_.Has(key)) images_.resolution = Resolution(key, foreign_);
    }
    if (!foreign_.Flag("enable_bucket").value_or(true)) {
      foreign_.Remark("enable_bucket is false: pictures keep their proportions in buckets");
    }
    if (const std::optional<std::string> path = foreign_.Text("dataset_config")) {
      const absl::StatusOr<std::string> text = files_.read(*path);
      if (!text.ok()) {
        return absl::InvalidArgumentError(absl::StrCat(
            "dataset_config is ", *path, ", which cannot be read: ", std::string(text.status().message())));
      }
      ASSIGN_OR_RETURN(const base::Json root, ParseForeign(*text, *path));
      ForeignConfig listed(root);
      ReadDatasets(listed);
      for (const std::string& note : listed.Finish()) imported_.notes.push_back(absl::StrCat(*path, ": ", note));
    }
    ReadDatasets(foreign_);
    for (const auto& [key, is_reg] : {std::pair{"train_data_dir", false}, std::pair{"reg_data_dir", true}}) {
      if (const std::optional<std::string> folder = foreign_.Text(key)) AddFolders(*folder, is_reg);
    }
    return absl::OkStatus();
  }

  void ReadDatasets(ForeignConfig& foreign) {
    Images images(foreign, images_);
    images.Read(config_.datasets);
    SetIfRead(images.batch_size(), config_.train.batch_size);
  }

  // The folders in it are named "10_a cat", with the number of repeats.
  void AddFolders(const std::string& folder, bool is_reg) {
    control::TrainDataset images = images_;
    images.is_reg = is_reg;
    size_t added = 0;
    for (const std::string& name : files_.folders(folder)) {
      const std::pair<std::string, std::string> parts = absl::StrSplit(name, absl::MaxSplits('_', 1));
      if (!absl::SimpleAtoi(parts.first, &images.num_repeats) || images.num_repeats < 1) continue;
      images.folder_path = absl::StrCat(folder, "/", name);
      config_.datasets.push_back(images);
      ++added;
    }
    if (added > 0) return;
    images.num_repeats = 1;
    images.folder_path = folder;
    config_.datasets.push_back(images);
    foreign_.Remark(absl::StrCat(folder, " has no folders named REPEATS_NAME: its own images are used, once each"));
  }

  absl::Status Sample() {
    control::TrainSample& sample = config_.sample;
    SetIfRead(foreign_.Integer("sample_every_n_steps"), sample.sample_every);
    foreign_.Note("sample_every_n_epochs", "samples are made by steps; see sample.sample_every");
    foreign_.Take("sample_sampler");
    const std::vector<std::string> typed = foreign_.Texts("sample_prompts");
    for (const std::string& text : typed) {
      std::string lines = text;
      if (absl::EndsWith(text, ".txt")) {
        const absl::StatusOr<std::string> read = files_.read(text);
        if (!read.ok()) {
          foreign_.Note("sample_prompts", absl::StrCat("it cannot be read: ", std::string(read.status().message())));
          continue;
        }
        lines = *read;
      } else if (absl::EndsWith(text, ".json") || absl::EndsWith(text, ".toml")) {
        foreign_.Note("sample_prompts", "prompts are read from text files alone; write them to sample.prompts");
        continue;
      }
      for (const absl::string_view line : absl::StrSplit(lines, '\n')) AddPrompt(line);
    }
    return absl::OkStatus();
  }

  // "a red house --w 1024 --h 1024 --d 42 --s 20 --l 3.5 --n ugly"
  void AddPrompt(absl::string_view line) {
    line = absl::StripAsciiWhitespace(line);
    if (line.empty() || line.front() == '#') return;
    const std::vector<std::string> parts = absl::StrSplit(line, " --");
    control::TrainSample& sample = config_.sample;
    const bool is_first = sample.prompts.empty();
    sample.prompts.push_back(parts[0]);
    for (size_t i = 1; i < parts.size(); ++i) {
      const std::pair<std::string, std::string> option = absl::StrSplit(parts[i], absl::MaxSplits(' ', 1));
      double value = 0;
      const bool is_number = absl::SimpleAtod(option.second, &value) && std::abs(value) < 1e15;
      int64_t* const field = option.first == "w"   ? &sample.width
                             : option.first == "h" ? &sample.height
                             : option.first == "d" ? &sample.seed
                             : option.first == "s" ? &sample.steps
                                                   : nullptr;
      const bool is_scale = option.first == "l" || option.first == "g";
      const bool is_used = is_number && (field != nullptr || is_scale);
      if (is_used && is_first) {
        if (is_scale) sample.guidance_scale = value;
        if (field != nullptr) *field = static_cast<int64_t>(value);
      } else if (!is_used || (is_scale ? sample.guidance_scale : static_cast<double>(*field)) != value) {
        foreign_.Remark(
            absl::StrCat("the prompt ", base::Quote(parts[0]), " has ", base::Quote("--" + parts[i]), ": ",
                         is_used ? "all samples have the value of the first prompt" : "there is no equivalent"));
      }
    }
  }

  ForeignConfig& foreign_;
  const ImportFiles& files_;
  ImportedConfig& imported_;
  TrainConfig& config_;
  control::TrainDataset images_;  // what all folders share
};

}  // namespace

bool HasKohyaArguments(const ForeignConfig& foreign) {
  constexpr std::array kMarks{"pretrained_model_name_or_path", "network_module", "train_data_dir", "dataset_config"};
  return std::ranges::any_of(kMarks, [&](const char* mark) { return foreign.Has(mark); });
}

absl::Status ImportKohya(ForeignConfig& foreign, const ImportFiles& files, ImportedConfig& imported) {
  return Arguments(foreign, files, imported).Read();
}

}  // namespace tessera::client
