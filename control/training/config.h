// What `tessera train` is told, as its YAML file says it: which model, which images, what is trained and how.
//
// Keys have the names of ai-toolkit where it has them, and those of diffusers' training scripts for losses and
// schedules. A file holds the keys of TrainConfig at its top; each struct below is one mapping. Everything that comes
// out of ParseTrainConfig is within its range. Pure but for LoadTrainConfig; free of LibTorch.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/enum_names.h"
#include "parallel/plan/mesh.h"

namespace tessera::control {

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

struct TrainSave {
  int64_t save_every = 250;  // steps; 0: at the end only
  int64_t max_step_saves_to_keep = 4;

  bool operator==(const TrainSave&) const = default;
};

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
