// What a front end may ask of a worker, as plain structs, and the interface that answers it.
//
// These mirror proto/tessera/internal/control.proto without including protobuf, so that code with LibTorch can use
// them. control/control_channel.h turns the stream of commands into calls of a CommandHandler.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "control/job_parameters.h"
#include "control/placement.h"
#include "control/training_commands.h"
#include "parallel/plan/layout_bytes.h"

namespace tessera::control {

// Of one EncodePrompts.
inline constexpr size_t kMaxPromptsAhead = 1024;
inline constexpr int32_t kMaxStepsTogether = 64;  // of one command

// Under which a server has steps of its own made; its tasks count up from 1.
inline constexpr uint64_t kProbeJob = ~uint64_t{0};

// One part of a pipeline: transformer, text_encoder, vae, …
struct ModelComponent {
  std::string name;
  ComponentRole role = ComponentRole::kOther;
  std::string class_name;
  uint64_t parameters = 0;
  uint64_t bytes = 0;              // as stored
  std::string dtype;               // as stored; "mixed" where there are several
  std::vector<std::string> files;  // names relative to the model's folder
};

// What of a transformer decides what its ranks send each other, and which blocks make a pipeline stage.
struct TransformerShape {
  parallel::ExchangeModel exchange;  // without blocks where nothing of this is known
  std::vector<double> block_flops;   // of each block, at the default size
  int32_t token_side = 0;            // of an image token, in pixels
  int32_t text_tokens = 0;           // of a prompt of the default length, as blocks see it

  bool known() const { return !exchange.blocks.empty(); }
};

// A matrix product of a component, which an adapter can lie beside.
struct MatrixProduct {
  std::string component;
  std::string name;  // diffusers' name of the module
  int64_t out = 0;
  int64_t in = 0;
  std::vector<std::string> aliases;
};

// All that a front end knows of a model.
struct ModelDescription {
  std::string pipeline;  // _class_name of model_index.json
  std::string family;
  std::string digest;  // sha-256 over configuration files and headers of weight files, hex
  std::vector<ModelComponent> components;
  int32_t size_multiple = 1;  // of height and width, unless resolution binning is on
  int32_t min_size = 1;       // pixels, each side
  int32_t max_size = 1;
  int32_t default_height = 0;
  int32_t default_width = 0;
  int32_t default_steps = 0;
  int32_t max_steps = 0;
  double default_guidance_scale = 0;
  bool default_resolution_binning = false;
  bool can_bin = false;  // the model has a table of sizes
  bool default_clean_caption = false;
  int32_t default_max_sequence_length = 0;
  int32_t max_sequence_length = 0;
  std::vector<std::string> options;  // what of PromptOptions the model reads, by the names in control/prompt_options.h
  std::string default_sampler;
  std::vector<std::string> samplers;
  int32_t heads = 0;
  int32_t blocks = 0;
  TransformerShape transformer;
  std::vector<MatrixProduct> products;  // of the components that take adapters; empty where they are not known
  std::string original_names;           // of modules, that tools but diffusers have for them: flux, sd3, none
  std::string libraries;                // that the worker computes with, and how: part of what a certificate is about
  std::string instruction_set;          // of the processor that the worker computes with (kernels/cpu/isa.h)
  std::vector<std::string> warnings;    // unknown fields of configuration files, and the like
};

struct LoadParameters {
  std::string model;  // folder
  Dtype dtype = Dtype::kFp32;
  std::string device = "cpu";  // as ParseDevice takes it (control/device.h)
  int32_t threads = 0;         // 0: all of the machine's
  ComponentPlacement text_encoders = ComponentPlacement::kRank0;
  ComponentPlacement autoencoder = ComponentPlacement::kRank0;
  uint64_t prompt_cache_bytes = uint64_t{256} << 20;  // 0: prompts are encoded every time
  bool stream_blocks = false;                         // the transformer's blocks are read from its files for each use
  Offload offload = Offload::kAuto;
  std::string record;     // a folder for what the blocks compute (control/step_record.h); empty: not kept
  bool training = false;  // the transformer's weights will be trained
  bool quantize = false;  // its matrices are frozen, and held in eight bits; with `training`
  // Of the transformer's blocks, which are frozen, so many wait in the host's memory for their use
  // (control/training/model_training.h); with `training`.
  int32_t blocks_to_swap = 0;
};

// Bytes of a device's own memory, beside the weights that a rank holds there.
struct MemoryBudget {
  uint64_t most = 0;  // where nobody else takes any of it
  uint64_t free = 0;  // now; no more than `most`

  bool operator==(const MemoryBudget&) const = default;
};

// Bytes of a device's own memory. What is neither free, used nor cached is taken by other processes and the driver.
struct DeviceMemory {
  uint64_t total = 0;
  uint64_t free = 0;    // nobody has taken it
  uint64_t used = 0;    // by tensors of the rank
  uint64_t cached = 0;  // kept by the rank for tensors to come

  bool operator==(const DeviceMemory&) const = default;
};

// Whatever beside the worker program decides what numbers come out: part of what a certificate is about. Empty where
// there is no such thing, as on the CPU.
struct DeviceIdentity {
  std::string device;  // its model
  std::string driver;
  std::string cudnn;
  std::string nccl;
  std::string communicator =
      "host";  // through which ranks exchange tensors; "host": memory of the host that they share

  bool operator==(const DeviceIdentity&) const = default;
};

struct Loaded {
  double seconds = 0;
  uint64_t weight_bytes = 0;  // as served
  // Absent in the host's memory, which the ranks share with everybody, and where the device does not say.
  std::optional<MemoryBudget> memory_budget;
  std::optional<DeviceMemory> device_memory;  // likewise
  // Of all bytes of its files, 64 hexadecimal digits; empty where another rank of the group reads the same files, and
  // where the model is trained.
  std::string contents;
};

struct JobStarted {
  int32_t height = 0;  // of the image that will come out
  int32_t width = 0;
  int32_t generated_height = 0;  // of the size that is denoised: differs under resolution binning
  int32_t generated_width = 0;
  std::string sampler;
  int32_t prompt_tokens = 0;
  int32_t max_sequence_length = 0;
  double seconds = 0;                 // spent on the text encoders
  bool cached = false;                // every prompt was in the cache
  std::vector<std::string> warnings;  // a prompt cut at the maximum length, and the like
};

struct Stepped {
  int32_t completed = 0;  // steps done by the first job of the batch
  double seconds = 0;
  uint64_t digest =
      0;  // of the latents of the batch, which are the same on every rank; 0: not known on this one, or it is alone
  std::optional<DeviceMemory> device_memory;  // after it; absent as in Loaded
};

// Latents or a prediction of one image, [channels, height, width], row-major.
struct LatentValues {
  std::vector<int64_t> shape;
  std::vector<double> values;
};

struct Decoded {
  int32_t height = 0;
  int32_t width = 0;
  double seconds = 0;
  int32_t completed = 0;  // steps of the job, whose latents were decoded
};

// Takes whole rows of 8-bit RGB, top to bottom without a gap; `first` is the index of the first of them. After an
// error the image is of no more use: return that error from Decode.
using RowSink = absl::FunctionRef<absl::Status(int32_t first, absl::Span<const uint8_t> rgb)>;

// Makes one image's pixels; called once.
using Decoding = std::function<absl::StatusOr<Decoded>(RowSink rows)>;

// Waits until a step that was issued is done, and says what became of it; called once.
using Stepping = std::function<absl::StatusOr<Stepped>()>;

// Does what the commands say, as one rank of a group that is given the same commands. Called from one thread, one
// command at a time, in the order of the log. Messages of the errors returned are shown to users. May throw: the
// control channel turns exceptions into errors (std::bad_alloc into RESOURCE_EXHAUSTED).
class CommandHandler {
 public:
  virtual ~CommandHandler() = default;

  // Reads configuration and headers of the weight files in folder `model`; needs no earlier Load.
  virtual absl::StatusOr<ModelDescription> Describe(const std::string& model) = 0;

  // What computes on a device, which LoadParameters name so. RESOURCE_EXHAUSTED where it is not available.
  virtual absl::StatusOr<DeviceIdentity> Identify(const std::string& device) { return DeviceIdentity(); }

  // At most one model is held; an earlier one, its jobs included, is dropped first. RESOURCE_EXHAUSTED, and no other
  // error, says that the device or its memory is not available.
  virtual absl::StatusOr<Loaded> Load(const LoadParameters& parameters) = 0;

  // `job` is new and not 0. After an error the job does not exist.
  virtual absl::StatusOr<JobStarted> StartJob(uint64_t job, const JobParameters& parameters) = 0;

  // Encodes the prompts of jobs that will be started soon, where that is worth while; those of how many are at hand
  // now. What is wrong with one StartJob will say.
  virtual absl::StatusOr<int32_t> EncodePrompts(absl::Span<const JobParameters> jobs) { return 0; }

  // One timestep for each of these distinct jobs: returns when its work is issued. NOT_FOUND for a job that was never
  // started or has ended, FAILED_PRECONDITION for one that has no steps left. What is returned is carried out before
  // the next command, or where steps_ahead() on a thread of its own, one after another: beside the commands that follow
  // but for Load, so that the next step is issued while this one runs.
  virtual absl::StatusOr<Stepping> Step(absl::Span<const uint64_t> jobs) = 0;
  virtual bool steps_ahead() const { return false; }

  // The image as it stands (before the last step: a preview). The job stays as it is. What is returned is carried out
  // before the next command, or where decodes_beside_steps() on a thread of its own, one after another: beside commands
  // for this job and others, its end included, but for Load. Rank 0 alone passes rows.
  virtual absl::StatusOr<Decoding> Decode(uint64_t job) = 0;
  virtual bool decodes_beside_steps() const { return false; }

  // The latents as they are, on rank 0; the others may return no values.
  virtual absl::StatusOr<LatentValues> Latents(uint64_t job) = 0;

  // What the model predicts at the job's next step, guidance included, from these latents in place of the job's own,
  // which stay as they are. Computed in one batch with the jobs `beside` it, at their latents. INVALID_ARGUMENT unless
  // shapes agree.
  virtual absl::StatusOr<LatentValues> Predict(uint64_t job, const LatentValues& latents,
                                               absl::Span<const uint64_t> beside) = 0;

  // Frees a job; an unknown one is no error.
  virtual absl::Status EndJob(uint64_t job) = 0;

  // A training run on the model, which was loaded for training; one at a time, an earlier one is dropped. UNIMPLEMENTED
  // by a handler that does not train. Between its steps jobs may be run, on the weights as they are.
  virtual absl::StatusOr<TrainingStarted> StartTraining(const TrainingStart&) { return DoesNotTrain(); }
  // Encodes at most so many further pictures with their captions; Train needs all of them.
  virtual absl::StatusOr<SamplesPrepared> PrepareSamples(int64_t) { return DoesNotTrain(); }
  // One step of the optimizer: forward and backward passes of a whole batch, over all ranks.
  virtual absl::StatusOr<Trained> Train() { return DoesNotTrain(); }
  // Writes a checkpoint, and where told to (`exports`) what was trained in the form in which it is served. A checkpoint
  // that could not be written is no error: the run can go on.
  virtual absl::StatusOr<TrainingSaved> SaveTraining(bool /*exports*/) { return DoesNotTrain(); }
  // Writes the adapter as it stands to this file, in place of one that is there; without a checkpoint. One that could
  // not be written is no error either.
  virtual absl::StatusOr<TrainingSaved> ExportTraining(const std::string& /*path*/) { return DoesNotTrain(); }
  virtual absl::StatusOr<TrainingEvaluated> EvaluateTraining() { return DoesNotTrain(); }

 private:
  static absl::Status DoesNotTrain() { return absl::UnimplementedError("this worker does not train"); }
};

}  // namespace tessera::control
