// What `tessera train` is told, as its YAML file says it: which model, which images, what is trained and how.
//
// Keys have the names of ai-toolkit where it has them, and those of diffusers' training scripts for losses and
// schedules. A file holds the keys of TrainConfig at its top; each struct below is one mapping. FieldsOf each describes
// its keys, with the help that `tessera train init` writes beside them (that of a choice follows its valid values).
// Everything that comes out of ParseTrainConfig is within its range. Pure but for LoadTrainConfig; free of LibTorch.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/enum_names.h"
#include "base/fields.h"
#include "parallel/plan/layout.h"
#include "parallel/plan/mesh.h"

namespace tessera::control {

inline constexpr uint64_t kMaxTrainSteps = 100000000;
inline constexpr base::Integer kTrainedSide = {16, 16384};  // pixels
inline constexpr base::Integer kTrainSeed = {0, uint64_t{1} << 53};

// What becomes of an image that, or whose caption, cannot be used: left out with its name in the report, or the run is
// refused.
enum class BadImages : uint8_t { kSkip, kRefuse };
constexpr auto NamesOf(BadImages) { return std::array{"skip", "refuse"}; }

struct TrainDataset {
  std::string folder_path;
  std::string caption_ext = "txt";     // of the file beside an image; metadata.jsonl goes before it
  double caption_dropout_rate = 0.05;  // share of the visits at which the caption is empty
  std::vector<int64_t> resolution;     // sides in pixels of a square of each bucket's area; empty: the model's default
  int64_t num_repeats = 1;             // visits of each image in an epoch
  bool is_reg = false;                 // regularisation: the trigger word does not go into its captions
  BadImages bad_images = BadImages::kRefuse;
  bool cache_latents_to_disk = true;  // what the encoders make of pictures, and of captions, is kept in the output
  bool cache_text_embeddings = true;  // folder, for the run's next start

  bool operator==(const TrainDataset&) const = default;
};

constexpr auto FieldsOf(const TrainDataset*) {
  using base::Field, base::Integer, base::List, base::Number, base::Text;
  using T = TrainDataset;
  return std::tuple(
      Field("folder_path", &T::folder_path, "with metadata.jsonl, or captions beside the images"),
      Field("caption_ext", &T::caption_ext, "of the caption beside an image"),
      Field("caption_dropout_rate", &T::caption_dropout_rate, Number{0, 1}, "share of visits with an empty caption"),
      Field("resolution", &T::resolution, List<Integer>{.each = kTrainedSide}, "pixels; several: each image in each"),
      Field("num_repeats", &T::num_repeats, Integer{1, 10000}, "visits of each image in an epoch"),
      Field("is_reg", &T::is_reg, "regularisation: captions without the trigger word"),
      Field("bad_images", &T::bad_images),
      Field("cache_latents_to_disk", &T::cache_latents_to_disk, "encoded pictures are kept for the next start"),
      Field("cache_text_embeddings", &T::cache_text_embeddings, "and encoded captions"));
}

enum class NetworkType : uint8_t { kLora, kFull };
constexpr auto NamesOf(NetworkType) { return std::array{"lora", "full"}; }

// How A starts; B starts at zero in both. PEFT's names: kaiming is its default, gaussian has deviation 1 / rank.
enum class NetworkInit : uint8_t { kKaiming, kGaussian };
constexpr auto NamesOf(NetworkInit) { return std::array{"kaiming", "gaussian"}; }

struct TrainNetwork {
  NetworkType type = NetworkType::kLora;
  int64_t linear = 16;       // rank
  double linear_alpha = 16;  // the path's scale is alpha / rank; a file without it means the rank
  NetworkInit init = NetworkInit::kKaiming;
  std::vector<std::string> target_modules;  // ends of the modules' names; empty: what is usual for the model's family
  bool from_scratch = false;                // all weights begin as random numbers, not as the model's (full)

  bool operator==(const TrainNetwork&) const = default;
};

constexpr auto FieldsOf(const TrainNetwork*) {
  using base::Field, base::Integer, base::List, base::Number, base::Text;
  using T = TrainNetwork;
  return std::tuple(Field("type", &T::type, ": an adapter, or all weights"),
                    Field("linear", &T::linear, Integer{1, 4096}, "rank of the adapter"),
                    Field("linear_alpha", &T::linear_alpha, Number{1e-6, 1e6}, "its scale is linear_alpha / linear"),
                    Field("init", &T::init),
                    Field("target_modules", &T::target_modules, "ends of the names of the modules that it changes"),
                    Field("from_scratch", &T::from_scratch, "all weights begin as random numbers (full)"));
}

enum class LearningRateSchedule : uint8_t { kConstant, kCosine, kWarmupStableDecay };
constexpr auto NamesOf(LearningRateSchedule) { return std::array{"constant", "cosine", "warmup_stable_decay"}; }

// Of timesteps under flow matching, as --weighting_scheme of diffusers' training scripts.
enum class WeightingScheme : uint8_t { kNone, kSigmaSqrt, kLogitNormal, kMode, kCosmap };
constexpr auto NamesOf(WeightingScheme) { return std::array{"none", "sigma_sqrt", "logit_normal", "mode", "cosmap"}; }

// What a model with a noise table is trained to predict: what its scheduler_config.json says, or one of these.
enum class TrainedPrediction : uint8_t { kScheduler, kEpsilon, kVelocity };
constexpr auto NamesOf(TrainedPrediction) { return std::array{"scheduler", "epsilon", "v_prediction"}; }

// Of activations and gradients; master weights and moments are fp32, under fp64 fp64.
enum class TrainDtype : uint8_t { kBf16, kFp32, kFp64 };
constexpr auto NamesOf(TrainDtype) { return std::array{"bf16", "fp32", "fp64"}; }

// Of AdamW.
struct OptimizerParameters {
  std::vector<double> betas = {0.9, 0.999};  // two
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
  int64_t steps = 1000;                     // of the optimizer
  int64_t batch_size = 1;                   // images of one pass over all data ranks together
  int64_t gradient_accumulation_steps = 1;  // passes of one step, whose gradients are averaged
  bool gradient_checkpointing = true;       // activations within a block are computed again for the gradient
  double lr = 1e-4;
  LearningRateSchedule lr_scheduler = LearningRateSchedule::kConstant;
  int64_t lr_warmup_steps = 0;             // from 0 in a straight line, before the schedule
  int64_t lr_decay_steps = 0;              // the last ones, in which warmup_stable_decay falls to 0
  bool low_discrepancy_timesteps = false;  // those of consecutive samples of the order lie evenly
  WeightingScheme weighting_scheme = WeightingScheme::kNone;
  double logit_mean = 0;
  double logit_std = 1;
  double mode_scale = 1.29;
  TrainedPrediction prediction_type = TrainedPrediction::kScheduler;  // a flow is trained to nothing else
  double snr_gamma = 0;                                               // min-SNR for epsilon and v prediction; 0: off
  double guidance_scale = 1;  // that a guidance-distilled model is told in training
  double max_grad_norm = 1;   // of the global norm; 0: gradients are not clipped
  double ema_decay = 0;       // 0: no moving average is kept
  OptimizerParameters optimizer_params;
  TrainDtype dtype = TrainDtype::kBf16;
  int64_t max_nonfinite_steps = 10;  // in a row that are skipped before the run stops
  double max_loss_ratio = 0;         // of a loss to its running mean, beyond which the run stops; 0: it goes on
  bool quantize = false;             // the frozen base is stored in 8 bits (lora)
  int64_t blocks_to_swap = 0;        // whose frozen weights wait in the host's memory (lora)

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
      Field("guidance_scale", &T::guidance_scale, Number{0, 1000}, "that a guidance-distilled model is told"),
      Field("max_grad_norm", &T::max_grad_norm, Number{0, 1e9}, "0: gradients are not clipped"),
      Field("ema_decay", &T::ema_decay, Number{0, 0.9999999}, "0: no moving average"),
      Field("optimizer_params", &T::optimizer_params), Field("dtype", &T::dtype, "; master weights are fp32"),
      Field("max_nonfinite_steps", &T::max_nonfinite_steps, Integer{0, kMaxTrainSteps},
            "in a row that are skipped before the run stops"),
      Field("max_loss_ratio", &T::max_loss_ratio, Number{0, 1e12},
            "of a loss to its running mean, beyond it the run stops; 0: never"),
      Field("quantize", &T::quantize, "the frozen base in 8 bits (lora)"),
      Field("blocks_to_swap", &T::blocks_to_swap, Integer{0, 1000},
            "whose frozen weights wait in the host's memory (lora, on a GPU)"));
}

struct TrainSample {
  int64_t sample_every = 0;  // steps; 0: never
  std::vector<std::string> prompts;
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
                    Field("prompts", &T::prompts), Field("seed", &T::seed, kTrainSeed),
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

// To a running server, which serves the adapter as it is so far, under one name, from a folder that both reach.
struct TrainPublish {
  std::string server;          // its admin listener, "http://127.0.0.1:9090"
  std::string adapter_folder;  // of the server's configuration, or the model's folder in it
  std::string name;            // of the adapter; empty: nothing is published
  int64_t publish_every = 0;   // steps; 0: at the end only
  std::string api_key_file;    // of a key of the server's admin_keys_file; empty: none
  std::string server_ca;       // PEM file of who vouches for an https:// server; empty: the system's

  bool operator==(const TrainPublish&) const = default;
};

constexpr auto FieldsOf(const TrainPublish*) {
  using base::Field, base::Integer, base::List, base::Number, base::Text;
  using T = TrainPublish;
  return std::tuple(Field("server", &T::server, "its admin listener, such as http://127.0.0.1:9090"),
                    Field("adapter_folder", &T::adapter_folder, "of the server's configuration"),
                    Field("name", &T::name, "that requests have for it; empty: not published"),
                    Field("publish_every", &T::publish_every, Integer{0, kMaxTrainSteps}, "steps; 0: at the end only"),
                    Field("api_key_file", &T::api_key_file, "of a key of its admin_keys_file; empty: none"),
                    Field("server_ca", &T::server_ca, "PEM file for https://; empty: the system's"));
}

// What of the training state the data ranks share out, by the stages of ZeRO: nothing, the optimizer's state, and the
// weights as well.
enum class ZeroStage : uint8_t { kNone, kOptimizer, kFull };
constexpr auto NamesOf(ZeroStage) { return std::array{"0", "1", "3"}; }

struct TrainParallelism {
  int64_t data = 1;
  int64_t tensor = 1;
  int64_t ulysses = 1;
  int64_t ring = 1;
  int64_t pipe = 1;                // stages of blocks, through which the passes of a step go as micro-batches
  bool sequence_parallel = false;  // tensor ranks share out tokens too: all-gather and reduce-scatter for all-reduce
  ZeroStage zero = ZeroStage::kNone;

  bool operator==(const TrainParallelism&) const = default;
  parallel::MeshShape mesh() const;
};

constexpr auto FieldsOf(const TrainParallelism*) {
  using base::Field, base::Integer, base::List, base::Number, base::Text;
  using T = TrainParallelism;
  constexpr Integer kDegree = {1, parallel::kMaxRanks};
  return std::tuple(
      Field("data", &T::data, kDegree, "divides batch_size"), Field("tensor", &T::tensor, kDegree),
      Field("ulysses", &T::ulysses, kDegree), Field("ring", &T::ring, kDegree),
      Field("pipe", &T::pipe, kDegree, "stages of blocks, for gradient_accumulation_steps micro-batches"),
      Field("sequence_parallel", &T::sequence_parallel, "tensor ranks share out tokens too"),
      Field("zero", &T::zero, ": what the data ranks share out (1: the optimizer's state, 3: weights too)"));
}

struct TrainConfig {
  std::string model;   // a folder, or a name that the command line knows
  std::string output;  // folder of checkpoints, samples and results
  int64_t seed = 0;
  std::string trigger_word;  // in place of [trigger] in captions, in front of those without; empty: none
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
      Field("publish", &T::publish, "The adapter as it is so far goes to a running server, which has this folder."),
      Field("parallelism", &T::parallelism, "Ranks are the product of the first five."));
}

// InvalidArgument with one line: which key, its value, what is valid, the nearest valid choice where there is one, and
// the line of the text. Unknown keys are refused with the nearest.
absl::StatusOr<TrainConfig> ParseTrainConfig(const std::string& text);

// The same of a file of at most 1 MiB; errors begin with its path.
absl::StatusOr<TrainConfig> LoadTrainConfig(const std::string& path);

// Every key with its value, as JSON in a fixed order, for checkpoints and for other processes. ParseTrainConfig reads
// it back as an equal config; equal configs have equal texts.
std::string TrainConfigJson(const TrainConfig& config);

// Whether a run that was begun with `before` may go on with `now`. What changes no sum may differ: model, output and
// the folders of images, whose contents are compared by their digests, recomputation, block swapping, parallelism,
// since a checkpoint is read by any topology, what happens with bad images, caches, steps that are not finite, sample,
// save and publish. So may train.steps, train.lr and train.max_loss_ratio, and where `same_samples` says that the
// digests of the samples are equal, every key of datasets and trigger_word. InvalidArgument names each other key that
// differs, with both values.
absl::Status CheckResumed(const TrainConfig& before, const TrainConfig& now, bool same_samples = false);

}  // namespace tessera::control
