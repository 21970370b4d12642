// Defines the commands that a front end sends to a worker, and the reply to each. Plain values, free of LibTorch and
// protobuf.
//
// A command is a struct with a Reply. Both are described (base/fields/fields.h), and Commands lists the command; the
// control channel encodes, checks and answers it from that. To add a command, add its struct here, and in
// control/protocol/command_handler.h how a CommandHandler answers it. Both ends always come from one build, which
// WorkerVersion ensures.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "base/fields/fields.h"
#include "control/host/device_memory.h"
#include "control/model/model_description.h"
#include "control/parameters/job_parameters.h"
#include "control/parameters/load_parameters.h"
#include "control/pictures/picture_frames.h"

namespace tessera::control {

// The job number of the server's own probes. The numbers of other jobs count up from 1.
inline constexpr uint64_t kProbeJob = ~uint64_t{0};

// Limits of one command.
inline constexpr size_t kMaxPromptsAhead = 1024;
inline constexpr int32_t kMaxStepsTogether = 64;
inline constexpr size_t kMaxBatch = 1024;  // jobs
inline constexpr int32_t kMaxFrames = 64;
inline constexpr int32_t kMaxChannels = 4;
inline constexpr uint64_t kMaxFramesBytes = uint64_t{1} << 34;  // of all frames

// Reads the model's configuration and the headers of its weight files; needs no earlier LoadModel.
struct DescribeModel {
  std::string model;  // folder

  using Reply = ModelDescription;
  static constexpr bool kIsLong = true;
};
constexpr auto FieldsOf(const DescribeModel*) { return std::tuple(base::Field("model", &DescribeModel::model, kPath)); }

struct IdentifyDevice {
  std::string device;  // as in LoadParameters

  using Reply = DeviceIdentity;
  static constexpr bool kIsLong = true;
};
constexpr auto FieldsOf(const IdentifyDevice*) { return std::tuple(base::Field("device", &IdentifyDevice::device)); }

// Loads a model. A worker holds at most one: an earlier one is dropped first, with its jobs.
struct LoadModel {
  LoadParameters parameters;

  using Reply = Loaded;
  static constexpr bool kIsLong = true;
};
constexpr auto FieldsOf(const LoadModel*) { return std::tuple(base::Inline(&LoadModel::parameters)); }

struct JobStarted {
  int32_t height = 0;  // of the resulting image
  int32_t width = 0;
  int32_t frames = 1;            // Frames::count of the resulting image
  int32_t channels = 3;          // Frames::channels of the resulting image
  int32_t generated_height = 0;  // of the image that is denoised; differs under resolution binning
  int32_t generated_width = 0;
  int32_t first_step = 0;  // the first step that is run, counted through the sampler's schedule
  int32_t steps = 0;       // number of steps that are run
  std::string sampler;
  int32_t prompt_tokens = 0;
  int32_t max_sequence_length = 0;
  double seconds = 0;                 // spent on the text encoders
  bool cached = false;                // every prompt was in the cache
  std::vector<std::string> warnings;  // for example that a prompt was cut at the maximum length
};
constexpr auto FieldsOf(const JobStarted*) {
  using base::Field, base::Integer;
  using J = JobStarted;
  return std::tuple(
      Field("height", &J::height, Integer{1, kMaxImageSide}), Field("width", &J::width, Integer{1, kMaxImageSide}),
      Field("frames", &J::frames, Integer{1, kMaxFrames}), Field("channels", &J::channels, Integer{1, kMaxChannels}),
      Field("generated_height", &J::generated_height, Integer{0, kMaxImageSide}),
      Field("generated_width", &J::generated_width, Integer{0, kMaxImageSide}),
      Field("first_step", &J::first_step, Integer{0, kMaxSteps}), Field("steps", &J::steps, Integer{1, kMaxSteps}),
      Field("sampler", &J::sampler), Field("prompt_tokens", &J::prompt_tokens),
      Field("max_sequence_length", &J::max_sequence_length), Field("seconds", &J::seconds), Field("cached", &J::cached),
      Field("warnings", &J::warnings));
}
// The resulting image has at most kMaxFramesBytes.
absl::Status CheckRules(const JobStarted& started);

// Encodes the prompts of a job and draws its initial noise.
struct StartJob {
  uint64_t job = 0;  // new
  JobParameters parameters;

  using Reply = JobStarted;
};
constexpr auto FieldsOf(const StartJob*) {
  return std::tuple(base::Field("job", &StartJob::job, base::Integer{.low = 1}), base::Inline(&StartJob::parameters));
}

struct PromptsEncoded {
  int32_t prompts = 0;  // prompts that are encoded when their jobs start
};
constexpr auto FieldsOf(const PromptsEncoded*) { return std::tuple(base::Field("prompts", &PromptsEncoded::prompts)); }

// Encodes the prompts of jobs that will start soon, for text encoders that are read from their files for each use.
// Starts no job.
struct EncodePrompts {
  std::vector<JobParameters> jobs;

  using Reply = PromptsEncoded;
};
constexpr auto FieldsOf(const EncodePrompts*) {
  return std::tuple(base::Field("jobs", &EncodePrompts::jobs, base::List<base::Nested>{.most = kMaxPromptsAhead}));
}

struct Stepped {
  int32_t completed = 0;  // steps that the first job of the batch has run
  double seconds = 0;
  // Digest of the batch's latents, which are the same on every rank; 0 if this rank does not know it or has no peers.
  uint64_t digest = 0;
  std::optional<DeviceMemory> device_memory;  // after the step; absent as in Loaded
};
constexpr auto FieldsOf(const Stepped*) {
  using base::Field;
  using S = Stepped;
  return std::tuple(Field("completed", &S::completed), Field("seconds", &S::seconds), Field("digest", &S::digest),
                    Field("device_memory", &S::device_memory));
}

struct StepsMade {
  std::vector<Stepped> steps;  // in order, at least one
};
constexpr auto FieldsOf(const StepsMade*) { return std::tuple(base::Field("steps", &StepsMade::steps)); }
absl::Status CheckRules(const StepsMade& made);

// Executes consecutive timesteps of one batch of jobs.
struct MakeSteps {
  std::vector<uint64_t> jobs;  // at least one
  int32_t count = 1;

  using Reply = StepsMade;
};
constexpr auto FieldsOf(const MakeSteps*) {
  return std::tuple(
      base::Field("jobs", &MakeSteps::jobs, base::List<base::Integer>{.most = kMaxBatch, .distinct = true}),
      base::Field("count", &MakeSteps::count, base::Integer{1, kMaxStepsTogether}));
}
absl::Status CheckRules(const MakeSteps& steps);

// A part of the reply to DecodeJob: some rows of the image.
struct Rows {
  int32_t first = 0;  // counted through all frames
  std::string bytes;  // whole rows
};
constexpr auto FieldsOf(const Rows*) {
  return std::tuple(base::Field("first", &Rows::first), base::Field("bytes", &Rows::bytes, base::Bytes()));
}

struct Decoded {
  int32_t height = 0;
  int32_t width = 0;
  int32_t frames = 1;
  int32_t channels = 3;
  double seconds = 0;
  int32_t completed = 0;  // steps that the job has run at the time of decoding
};
constexpr auto FieldsOf(const Decoded*) {
  using base::Field;
  using D = Decoded;
  return std::tuple(Field("height", &D::height), Field("width", &D::width), Field("frames", &D::frames),
                    Field("channels", &D::channels), Field("seconds", &D::seconds), Field("completed", &D::completed));
}

// Returns the shape that a JobStarted or Decoded states, without bytes.
template <class Reply>
Frames ShapeOf(const Reply& reply) {
  return {.width = reply.width, .height = reply.height, .count = reply.frames, .channels = reply.channels, .bytes = {}};
}

// Decodes the job's current latents; before the last step, the result is a preview. Rank 0 sends any number of Rows
// before the reply.
struct DecodeJob {
  uint64_t job = 0;

  using Reply = Decoded;
};
constexpr auto FieldsOf(const DecodeJob*) { return std::tuple(base::Field("job", &DecodeJob::job)); }

struct Ended {};
constexpr auto FieldsOf(const Ended*) { return std::tuple(); }

// Frees a job that has finished, was cancelled or was given up. An unknown job is not an error.
struct EndJob {
  uint64_t job = 0;

  using Reply = Ended;
};
constexpr auto FieldsOf(const EndJob*) { return std::tuple(base::Field("job", &EndJob::job)); }

// Latents or a prediction of one image, [channels, height, width], row-major.
struct LatentValues {
  std::vector<int64_t> shape;
  std::vector<double> values;
};
constexpr auto FieldsOf(const LatentValues*) {
  using base::List;
  return std::tuple(base::Field("shape", &LatentValues::shape, List<base::Integer>{.each = {.low = 1}, .most = 8}),
                    base::Field("values", &LatentValues::values, List<base::Number>{.most = 1 << 24}));
}
// The number of values is the product of the shape, or there are no values.
absl::Status CheckRules(const LatentValues& latents);

// Returns the job's current latents. Ranks other than rank 0 reply without values.
struct ReadLatents {
  uint64_t job = 0;

  using Reply = LatentValues;
};
constexpr auto FieldsOf(const ReadLatents*) { return std::tuple(base::Field("job", &ReadLatents::job)); }

// Predicts the model's output at the job's next step, guidance included, from these latents instead of the job's own,
// in one batch with the jobs `others` at their own latents. No job changes. Ranks other than rank 0 reply without
// values.
struct PredictFrom {
  uint64_t job = 0;
  LatentValues latents;
  std::vector<uint64_t> others;

  using Reply = LatentValues;
};
constexpr auto FieldsOf(const PredictFrom*) {
  return std::tuple(
      base::Field("job", &PredictFrom::job), base::Inline(&PredictFrom::latents),
      base::Field("others", &PredictFrom::others, base::List<base::Integer>{.most = kMaxBatch - 1, .distinct = true}));
}
absl::Status CheckRules(const PredictFrom& command);

struct TrainingStarted {
  int64_t step = 0;  // optimizer steps done so far
  int64_t trained_parameters = 0;
  int64_t samples = 0;     // pictures with captions, repetitions not counted
  std::string checkpoint;  // the folder that the run resumes from; empty: none
  std::vector<std::string> warnings;
};
constexpr auto FieldsOf(const TrainingStarted*) {
  using base::Field, base::Integer;
  using T = TrainingStarted;
  return std::tuple(Field("step", &T::step, Integer{.low = 0}), Field("trained_parameters", &T::trained_parameters),
                    Field("samples", &T::samples, Integer{.low = 1}), Field("checkpoint", &T::checkpoint, kPath),
                    Field("warnings", &T::warnings));
}

// Begins a training run on the model, which must be loaded for training. An earlier run is dropped.
struct TrainingStart {
  std::string config;      // the text of the run's configuration
  std::string checkpoint;  // the folder to resume from, or "latest" of the run; empty: start from the model's weights

  using Reply = TrainingStarted;
  static constexpr bool kIsLong = true;
};
constexpr auto FieldsOf(const TrainingStart*) {
  return std::tuple(base::Field("config", &TrainingStart::config, kPath),
                    base::Field("checkpoint", &TrainingStart::checkpoint, kPath));
}

struct SamplesPrepared {
  int64_t prepared = 0;         // so far
  int64_t samples = 0;          // in total
  int64_t cached_pictures = 0;  // prepared samples whose encoding was read from the disk
  int64_t cached_captions = 0;
  std::vector<std::string> warnings;
};
constexpr auto FieldsOf(const SamplesPrepared*) {
  using base::Field;
  using S = SamplesPrepared;
  return std::tuple(Field("prepared", &S::prepared, base::Integer{.low = 0}), Field("samples", &S::samples),
                    Field("cached_pictures", &S::cached_pictures), Field("cached_captions", &S::cached_captions),
                    Field("warnings", &S::warnings));
}
absl::Status CheckRules(const SamplesPrepared& prepared);

// Encodes the run's next pictures with their captions. TrainStep requires that all of them are encoded.
struct PrepareSamples {
  int64_t most = 1;  // samples

  using Reply = SamplesPrepared;
  static constexpr bool kIsLong = true;
};
constexpr auto FieldsOf(const PrepareSamples*) {
  return std::tuple(base::Field("most", &PrepareSamples::most, base::Integer{1, uint64_t{1} << 32}));
}

struct Trained {
  int64_t step = 0;          // steps done
  double loss = 0;           // of the whole batch
  double gradient_norm = 0;  // of all parameters, before clipping
  double learning_rate = 0;
  double seconds = 0;
  // The loss or the gradients were not finite, or the loss exceeded train.max_loss_ratio; no weight was changed.
  bool skipped = false;
  double loss_ratio = 0;  // loss divided by the running mean of the run's earlier finite losses; 0: there are none
};
constexpr auto FieldsOf(const Trained*) {
  using base::Field;
  using T = Trained;
  return std::tuple(Field("step", &T::step), Field("loss", &T::loss), Field("gradient_norm", &T::gradient_norm),
                    Field("learning_rate", &T::learning_rate), Field("seconds", &T::seconds),
                    Field("skipped", &T::skipped), Field("loss_ratio", &T::loss_ratio));
}

// Executes one optimizer step: forward and backward passes of a whole batch, over all ranks.
struct TrainStep {
  using Reply = Trained;
  static constexpr bool kIsLong = true;
};
constexpr auto FieldsOf(const TrainStep*) { return std::tuple(); }

struct TrainingSaved {
  std::string checkpoint;  // folder; empty: not written, and the warnings contain the reason
  std::string exported;    // file or folder; empty: none
  double seconds = 0;
  std::vector<std::string> warnings;
};
constexpr auto FieldsOf(const TrainingSaved*) {
  using base::Field;
  using S = TrainingSaved;
  return std::tuple(Field("checkpoint", &S::checkpoint, kPath), Field("exported", &S::exported, kPath),
                    Field("seconds", &S::seconds), Field("warnings", &S::warnings));
}

// Writes a checkpoint. Failing to write one is not an error: the run can continue.
struct SaveTraining {
  bool exports = false;  // also writes the trained weights in the form in which they are served

  using Reply = TrainingSaved;
  static constexpr bool kIsLong = true;
};
constexpr auto FieldsOf(const SaveTraining*) { return std::tuple(base::Field("exports", &SaveTraining::exports)); }

// Writes the adapter's current weights to this file, which is replaced. Failing to write it is not an error either.
struct ExportTraining {
  std::string path;

  using Reply = TrainingSaved;
  static constexpr bool kIsLong = true;
};
constexpr auto FieldsOf(const ExportTraining*) { return std::tuple(base::Field("path", &ExportTraining::path, kPath)); }
absl::Status CheckRules(const ExportTraining& command);

struct TrainingEvaluated {
  std::vector<double> losses;  // at each of the fixed timesteps
};
constexpr auto FieldsOf(const TrainingEvaluated*) {
  return std::tuple(base::Field("losses", &TrainingEvaluated::losses));
}

struct EvaluateTraining {
  using Reply = TrainingEvaluated;
  static constexpr bool kIsLong = true;
};
constexpr auto FieldsOf(const EvaluateTraining*) { return std::tuple(); }

// Counts the commands of all controllers of a worker so far. Ranks with equal counts have executed the same commands.
struct WorkerProgress {
  uint64_t commands = 0;
  uint64_t failures = 0;

  bool operator==(const WorkerProgress&) const = default;
};
constexpr auto FieldsOf(const WorkerProgress*) {
  return std::tuple(base::Field("commands", &WorkerProgress::commands),
                    base::Field("failures", &WorkerProgress::failures));
}

// Asks a worker that has outlived its controllers for its progress.
struct Resume {
  using Reply = WorkerProgress;
};
constexpr auto FieldsOf(const Resume*) { return std::tuple(); }

// Ends the worker, which replies, closes the stream and exits.
struct Shutdown {
  using Reply = Ended;
};
constexpr auto FieldsOf(const Shutdown*) { return std::tuple(); }

using Commands = std::tuple<DescribeModel, IdentifyDevice, LoadModel, StartJob, EncodePrompts, MakeSteps, DecodeJob,
                            EndJob, ReadLatents, PredictFrom, TrainingStart, PrepareSamples, TrainStep, SaveTraining,
                            ExportTraining, EvaluateTraining, Resume, Shutdown>;

// The number of a command in the stream: its index in Commands.
template <class Command, class List = Commands>
inline constexpr uint32_t kCommandNumber = 0;
template <class Command, class First, class... Rest>
inline constexpr uint32_t kCommandNumber<Command, std::tuple<First, Rest...>> =
    std::is_same_v<Command, First> ? 0 : 1 + kCommandNumber<Command, std::tuple<Rest...>>;
template <class Command>
inline constexpr uint32_t kCommandNumber<Command, std::tuple<>> = 0;  // after the last match

// Whether the command may take as long as loading a model.
template <class Command>
constexpr bool IsLong() {
  if constexpr (requires { Command::kIsLong; }) return Command::kIsLong;
  return false;
}

}  // namespace tessera::control
