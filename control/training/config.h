// TrainConfig holds the YAML configuration of `tessera train`: which model and images to use, what to train and how.
//
// Keys have the names of ai-toolkit if it has them; losses and schedules have those of diffusers' training scripts. The
// top level of a file holds the keys of TrainConfig, and each struct below is one mapping. FieldsOf describes its keys,
// with the help that `tessera train init` writes next to them (for a choice, it follows the valid values). All values
// that ParseTrainConfig returns are within their ranges. Pure except for LoadTrainConfig; free of LibTorch.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/fields/enum_names.h"
#include "base/fields/fields.h"
#include "parallel/plan/layout.h"
#include "parallel/plan/mesh.h"

namespace tessera::control {

inline constexpr uint64_t kMaxTrainSteps = 100000000;
inline constexpr base::Integer kTrainedSide = {16, 16384};  // pixels
inline constexpr base::Integer kTrainSeed = {0, uint64_t{1} << 53};

// What happens if an image or its caption cannot be used: the image is left out and named in the report, or the run is
// refused.
enum class BadImages : uint8_t { kSkip, kRefuse };
constexpr auto NamesOf(BadImages) { return std::array{"skip", "refuse"}; }

struct TrainDataset {
  std::string folder_path;
  // Folders with the pictures at which the model looks while it makes an image: in each, the picture of the image's
  // name. For a model that edits pictures; empty: there are none, or metadata.jsonl names them.
  std::vector<std::string> control_path;
  std::string caption_ext = "txt";     // of an image's caption file; metadata.jsonl takes precedence
  double caption_dropout_rate = 0.05;  // share of visits with an empty caption
  std::vector<int64_t> resolution;     // sides in pixels of a square of each bucket's area; empty: the model's default
  int64_t num_repeats = 1;             // visits of each image in an epoch
  bool is_reg = false;                 // regularisation: the trigger word is not added to its captions
  BadImages bad_images = BadImages::kRefuse;
  bool cache_latents_to_disk = true;  // keep encoded pictures and captions in the output
  bool cache_text_embeddings = true;  // folder for the run's next start

  bool operator==(const TrainDataset&) const = default;
};

constexpr auto FieldsOf(const TrainDataset*) {
  using base::Field, base::Integer, base::List, base::Number, base::Text;
  using T = TrainDataset;
  return std::tuple(
      Field("folder_path", &T::folder_path, "with metadata.jsonl, or a caption file for each image"),
      Field("control_path", &T::control_path, "folders with the pictures to edit, by the images' names; []: none"),
      Field("caption_ext", &T::caption_ext, "extension of the caption files"),
      Field("caption_dropout_rate", &T::caption_dropout_rate, Number{0, 1}, "share of visits with an empty caption"),
      Field("resolution", &T::resolution, List<Integer>{.each = kTrainedSide}, "pixels; several: each image in each"),
      Field("num_repeats", &T::num_repeats, Integer{1, 10000}, "visits of each image in an epoch"),
      Field("is_reg", &T::is_reg, "regularisation: captions without the trigger word"),
      Field("bad_images", &T::bad_images),
      Field("cache_latents_to_disk", &T::cache_latents_to_disk, "encoded pictures are kept for the next start"),
      Field("cache_text_embeddings", &T::cache_text_embeddings, "encoded captions are kept, too"));
}

enum class NetworkType : uint8_t { kLora, kFull };
constexpr auto NamesOf(NetworkType) { return std::array{"lora", "full"}; }

// How A is initialised; B is zero in both cases. The names are PEFT's: kaiming is its default, gaussian has deviation 1
// / rank.
enum class NetworkInit : uint8_t { kKaiming, kGaussian };
constexpr auto NamesOf(NetworkInit) { return std::array{"kaiming", "gaussian"}; }

struct TrainNetwork {
  NetworkType type = NetworkType::kLora;
  int64_t linear = 16;       // rank
  double linear_alpha = 16;  // the adapter's scale is alpha / rank; if the file omits it, it equals the rank
  NetworkInit init = NetworkInit::kKaiming;
  std::vector<std::string> target_modules;  // as in target_modules.h; empty: the family's default modules
  bool from_scratch = false;                // all weights start as random numbers instead of the model's (full)

  bool operator==(const TrainNetwork&) const = default;
};

constexpr auto FieldsOf(const TrainNetwork*) {
  using base::Field, base::Integer, base::List, base::Number, base::Text;
  using T = TrainNetwork;
  return std::tuple(Field("type", &T::type, ": an adapter, or all weights"),
                    Field("linear", &T::linear, Integer{1, 4096}, "rank of the adapter"),
                    Field("linear_alpha", &T::linear_alpha, Number{1e-6, 1e6}, "its scale is linear_alpha / linear"),
                    Field("init", &T::init),
                    Field("target_modules", &T::target_modules,
                          "ends of the names of its modules, patterns such as attn.*, or all-linear"),
                    Field("from_scratch", &T::from_scratch, "all weights begin as random numbers (full)"));
}

enum class LearningRateSchedule : uint8_t { kConstant, kCosine, kWarmupStableDecay };
constexpr auto NamesOf(LearningRateSchedule) { return std::array{"constant", "cosine", "warmup_stable_decay"}; }

// The weighting of timesteps under flow matching, as --weighting_scheme of diffusers' training scripts.
enum class WeightingScheme : uint8_t { kNone, kSigmaSqrt, kLogitNormal, kMode, kCosmap };
constexpr auto NamesOf(WeightingScheme) { return std::array{"none", "sigma_sqrt", "logit_normal", "mode", "cosmap"}; }

// What a model with a noise table is trained to predict: as its scheduler_config.json says, or one of these.
enum class TrainedPrediction : uint8_t { kScheduler, kEpsilon, kVelocity };
constexpr auto NamesOf(TrainedPrediction) { return std::array{"scheduler", "epsilon", "v_prediction"}; }

// Dtype of activations and gradients. Master weights and moments are fp32, or fp64 under fp64.
enum class TrainDtype : uint8_t { kBf16, kFp32, kFp64 };
constexpr auto NamesOf(TrainDtype) { return std::array{"bf16", "fp32", "fp64"}; }

// Parameters of AdamW.
struct OptimizerParameters {
  std::vector<double> betas = {0.9, 0.999};  // two values
  double eps = 1e-8;
  double weight_decay = 0.01;  // decoupled

  bool operator==(const OptimizerParameters&) const = default;
};

constexpr auto FieldsOf(const OptimizerParameters*) {
  using base::Field, base::Integer, base::List, base::Number, base::Text;
  using T = OptimizerParameters;
  return std::tuple(Field("betas", &T::betas, List<Number>{.each = {0, 0.9999999}}, "of AdamW"),
                    Field("eps", &T::eps, Number{1e-30, 1}), Field("weight_decay", &T::weight_decay, Number{0, 100}));
}

struct TrainProcedure {
  int64_t steps = 1000;                     // optimizer steps
  int64_t batch_size = 1;                   // images of one pass, over all data ranks together
  int64_t gradient_accumulation_steps = 1;  // passes per step, whose gradients are averaged
  bool gradient_checkpointing = true;       // recompute the activations within a block for the gradient
  double lr = 1e-4;
  LearningRateSchedule lr_scheduler = LearningRateSchedule::kConstant;
  int64_t lr_warmup_steps = 0;             // linear from 0, before the schedule
  int64_t lr_decay_steps = 0;              // the last steps, in which warmup_stable_decay falls to 0
  bool low_discrepancy_timesteps = false;  // spread the timesteps of consecutive samples evenly
  WeightingScheme weighting_scheme = WeightingScheme::kNone;
  double logit_mean = 0;
  double logit_std = 1;
  double mode_scale = 1.29;
  TrainedPrediction prediction_type = TrainedPrediction::kScheduler;  // flow models have no other choice
  double snr_gamma = 0;                                               // min-SNR for epsilon and v prediction; 0: off
  double guidance_scale = 1;                                          // input of a guidance-distilled model in training
  double max_grad_norm = 1;  // bound of the global norm; 0: gradients are not clipped
  double ema_decay = 0;      // 0: no moving average
  OptimizerParameters optimizer_params;
  TrainDtype dtype = TrainDtype::kBf16;
  int64_t max_nonfinite_steps = 10;  // consecutive skipped steps after which the run stops
  double max_loss_ratio = 0;         // of a loss to its running mean, above which the run stops; 0: never stops
  bool quantize = false;             // store the frozen base in 8 bits (lora)
  int64_t blocks_to_swap = 0;        // blocks whose frozen weights are kept in host memory (lora)
  std::string assistant_adapter;     // added to a distilled model while it is trained (lora); empty: none
  bool break_distillation = false;   // train a distilled model without that adapter, or all of its weights

  bool operator==(const TrainProcedure&) const = default;
};

constexpr auto FieldsOf(const TrainProcedure*) {
  using base::Field, base::Integer, base::List, base::Number, base::Text;
  using T = TrainProcedure;
  return std::tuple(
      Field("steps", &T::steps, Integer{1, kMaxTrainSteps}),
      Field("batch_size", &T::batch_size, Integer{1, 65536}, "images of a pass, over all data ranks"),
      Field("gradient_accumulation_steps", &T::gradient_accumulation_steps, Integer{1, 65536}, "passes of a step"),
      Field("gradient_checkpointing", &T::gradient_checkpointing, "less memory, about a third more time"),
      Field("lr", &T::lr, Number{0, 10}), Field("lr_scheduler", &T::lr_scheduler),
      Field("lr_warmup_steps", &T::lr_warmup_steps, Integer{0, kMaxTrainSteps}),
      Field("lr_decay_steps", &T::lr_decay_steps, Integer{0, kMaxTrainSteps}, "at the end (warmup_stable_decay)"),
      Field("low_discrepancy_timesteps", &T::low_discrepancy_timesteps, "evenly over consecutive samples"),
      Field("weighting_scheme", &T::weighting_scheme, " (flow matching)"),
      Field("logit_mean", &T::logit_mean, Number{-100, 100}), Field("logit_std", &T::logit_std, Number{1e-6, 100}),
      Field("mode_scale", &T::mode_scale, Number{-10, 10}),
      Field("prediction_type", &T::prediction_type, " (scheduler: what the model's says)"),
      Field("snr_gamma", &T::snr_gamma, Number{0, 1e6}, "min-SNR (epsilon and v prediction); 0: off"),
      Field("guidance_scale", &T::guidance_scale, Number{0, 1000}, "input of a guidance-distilled model"),
      Field("max_grad_norm", &T::max_grad_norm, Number{0, 1e9}, "0: gradients are not clipped"),
      Field("ema_decay", &T::ema_decay, Number{0, 0.9999999}, "0: no moving average"),
      Field("optimizer_params", &T::optimizer_params), Field("dtype", &T::dtype, "; master weights are fp32"),
      Field("max_nonfinite_steps", &T::max_nonfinite_steps, Integer{0, kMaxTrainSteps},
            "such steps in a row are skipped, then the run stops"),
      Field("max_loss_ratio", &T::max_loss_ratio, Number{0, 1e12},
            "the run stops at a loss so many times its running mean; 0: never"),
      Field("quantize", &T::quantize, "the frozen base in 8 bits (lora)"),
      Field("blocks_to_swap", &T::blocks_to_swap, Integer{0, 1000},
            "blocks whose frozen weights are kept in host memory (lora, on a GPU)"),
      Field("assistant_adapter", &T::assistant_adapter,
            "adapter that is added to a distilled model in training alone (lora); empty: none"),
      Field("break_distillation", &T::break_distillation,
            "train a distilled model all the same; afterwards it needs more steps"));
}

// A prompt of a sample image with the pictures at which the model looks.
struct TrainSamplePrompt {
  std::string prompt;
  std::vector<std::string> ctrl_img;  // paths of the pictures, in the order of the model's inputs

  bool operator==(const TrainSamplePrompt&) const = default;
};

constexpr auto FieldsOf(const TrainSamplePrompt*) {
  using T = TrainSamplePrompt;
  return std::tuple(base::Field("prompt", &T::prompt), base::Field("ctrl_img", &T::ctrl_img));
}

struct TrainSample {
  int64_t sample_every = 0;  // steps; 0: never
  std::vector<std::string> prompts;
  std::vector<TrainSamplePrompt> samples;  // in addition to prompts, and after these
  int64_t seed = 42;
  int64_t steps = 0;           // 0: the model's default, as below
  double guidance_scale = -1;  // negative: the model's default
  int64_t width = 0;
  int64_t height = 0;

  bool operator==(const TrainSample&) const = default;
};

constexpr auto FieldsOf(const TrainSample*) {
  using base::Field, base::Integer, base::List, base::Number, base::Text;
  using T = TrainSample;
  return std::tuple(Field("sample_every", &T::sample_every, Integer{0, kMaxTrainSteps}, "steps; 0: never"),
                    Field("prompts", &T::prompts),
                    Field("samples", &T::samples, "prompts with pictures, as {prompt: TEXT, ctrl_img: [FILE]}"),
                    Field("seed", &T::seed, kTrainSeed),
                    Field("steps", &T::steps, Integer{0, 1 << 20}, "0: the model's default, as below"),
                    Field("guidance_scale", &T::guidance_scale, Number{-1, 1000}, "negative: the model's default"),
                    Field("width", &T::width, Integer{0, kTrainedSide.high}),
                    Field("height", &T::height, Integer{0, kTrainedSide.high}));
}

struct TrainSave {
  int64_t save_every = 250;  // steps; 0: at the end only
  int64_t max_step_saves_to_keep = 4;

  bool operator==(const TrainSave&) const = default;
};

constexpr auto FieldsOf(const TrainSave*) {
  using base::Field, base::Integer, base::List, base::Number, base::Text;
  using T = TrainSave;
  return std::tuple(Field("save_every", &T::save_every, Integer{0, kMaxTrainSteps}, "steps; 0: at the end only"),
                    Field("max_step_saves_to_keep", &T::max_step_saves_to_keep, Integer{1, 100000}));
}

// Publishes the current adapter to a running server under one name. The server reads it from a folder that both can
// access.
struct TrainPublish {
  std::string server;          // its admin listener, "http://127.0.0.1:9090"
  std::string adapter_folder;  // of the server's configuration, or the model's folder in it
  std::string name;            // of the adapter; empty: publish nothing
  int64_t publish_every = 0;   // steps; 0: at the end only
  std::string api_key_file;    // with a key of the server's admin_keys_file; empty: none
  std::string server_ca;       // PEM file of the CA of an https:// server; empty: the system's

  bool operator==(const TrainPublish&) const = default;
};

constexpr auto FieldsOf(const TrainPublish*) {
  using base::Field, base::Integer, base::List, base::Number, base::Text;
  using T = TrainPublish;
  return std::tuple(Field("server", &T::server, "its admin listener, such as http://127.0.0.1:9090"),
                    Field("adapter_folder", &T::adapter_folder, "of the server's configuration"),
                    Field("name", &T::name, "name of the adapter in requests; empty: not published"),
                    Field("publish_every", &T::publish_every, Integer{0, kMaxTrainSteps}, "steps; 0: at the end only"),
                    Field("api_key_file", &T::api_key_file, "of a key of its admin_keys_file; empty: none"),
                    Field("server_ca", &T::server_ca, "PEM file for https://; empty: the system's"));
}

// Which training state is sharded over the data ranks, by the stages of ZeRO: none, the optimizer's, or that and the
// weights.
enum class ZeroStage : uint8_t { kNone, kOptimizer, kFull };
constexpr auto NamesOf(ZeroStage) { return std::array{"0", "1", "3"}; }

struct TrainParallelism {
  int64_t data = 1;
  int64_t tensor = 1;
  int64_t ulysses = 1;
  int64_t ring = 1;
  int64_t pipe = 1;                // stages of blocks; the passes of a step are its micro-batches
  bool sequence_parallel = false;  // shard tokens over tensor ranks: all-gather and reduce-scatter replace all-reduce
  ZeroStage zero = ZeroStage::kNone;

  bool operator==(const TrainParallelism&) const = default;
  parallel::MeshShape mesh() const;
};

constexpr auto FieldsOf(const TrainParallelism*) {
  using base::Field, base::Integer, base::List, base::Number, base::Text;
  using T = TrainParallelism;
  constexpr Integer kDegree = {1, parallel::kMaxRanks};
  return std::tuple(Field("data", &T::data, kDegree, "divides batch_size"), Field("tensor", &T::tensor, kDegree),
                    Field("ulysses", &T::ulysses, kDegree), Field("ring", &T::ring, kDegree),
                    Field("pipe", &T::pipe, kDegree, "stages of blocks, for gradient_accumulation_steps micro-batches"),
                    Field("sequence_parallel", &T::sequence_parallel, "tensor ranks also split the tokens"),
                    Field("zero", &T::zero, ": what the data ranks split (1: the optimizer's state, 3: weights, too)"));
}

struct TrainConfig {
  std::string model;   // a folder, or a name known to the command line
  std::string output;  // folder of checkpoints, samples and results
  int64_t seed = 0;
  std::string trigger_word;  // replaces [trigger] in captions and precedes captions without it; empty: none
  std::vector<TrainDataset> datasets;
  TrainNetwork network;
  TrainProcedure train;
  TrainSample sample;
  TrainSave save;
  TrainPublish publish;
  TrainParallelism parallelism;

  bool operator==(const TrainConfig&) const = default;
};

constexpr auto FieldsOf(const TrainConfig*) {
  using base::Field, base::Integer, base::List, base::Number, base::Text;
  using T = TrainConfig;
  return std::tuple(
      Field("model", &T::model, "folder, or name of a known model"),
      Field("output", &T::output, "folder of checkpoints, samples and results"),
      Field("seed", &T::seed, kTrainSeed, "of noise, timesteps, order and caption dropout"),
      Field("trigger_word", &T::trigger_word, "in place of [trigger] in captions, else in front; empty: none"),
      Field("datasets", &T::datasets), Field("network", &T::network), Field("train", &T::train),
      Field("sample", &T::sample), Field("save", &T::save),
      Field("publish", &T::publish, "Publishes the current adapter to a running server that serves this folder."),
      Field("parallelism", &T::parallelism, "Ranks are the product of the first five."));
}

// InvalidArgument with a one-line message: the key, its value, what is valid, the nearest valid choice if there is one,
// and the line of the text. An unknown key is refused, and the message names the nearest key.
absl::StatusOr<TrainConfig> ParseTrainConfig(const std::string& text);

// Parses a file of at most 1 MiB. Errors are those of ParseTrainConfig and begin with the path.
absl::StatusOr<TrainConfig> LoadTrainConfig(const std::string& path);

// Every key with its value, as JSON in a fixed order, for checkpoints and other processes. ParseTrainConfig parses it
// to an equal config, and equal configs have equal texts.
std::string TrainConfigJson(const TrainConfig& config);

// Checks whether a run that was started with `before` may continue with `now`. Keys that change no sum may differ:
// model, output, train.assistant_adapter and the folders of images, whose contents are compared by their digests;
// recomputation, block swapping and parallelism, because any topology can read a checkpoint; handling of bad images,
// caches, non-finite steps, train.break_distillation, sample, save and publish. train.steps, train.lr and
// train.max_loss_ratio may differ too, and so may every key of datasets and trigger_word if `same_samples`, which says
// that the digests of the samples are equal. InvalidArgument names each other key that differs, with both values.
absl::Status CheckResumed(const TrainConfig& before, const TrainConfig& now, bool same_samples = false);

}  // namespace tessera::control
