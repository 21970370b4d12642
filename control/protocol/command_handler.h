// CommandHandler executes the commands of a control channel. The worker's engine implements it, and so do the fakes of
// tests.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace tessera::control {

struct ComponentFiles;
struct Decoded;
struct DescribeModel;
struct DeviceIdentity;
struct DigestModel;
struct EncodePrompts;
struct EvaluateTraining;
struct ExportTraining;
struct IdentifyDevice;
struct JobParameters;
struct JobStarted;
struct LatentValues;
struct LoadParameters;
struct Loaded;
struct ModelDescription;
struct ModelDigest;
struct PrepareSamples;
struct SamplesPrepared;
struct SaveTraining;
struct Stepped;
struct TrainStep;
struct Trained;
struct TrainingEvaluated;
struct TrainingSaved;
struct TrainingStart;
struct TrainingStarted;

// Receives whole rows of Frames, frame by frame, top to bottom without a gap; `first` is the index of the first row,
// counted through all frames. If a call fails, Decode returns its error.
using RowSink = absl::FunctionRef<absl::Status(int32_t first, absl::Span<const uint8_t> bytes)>;

// Computes one image's pixels; called once.
using Decoding = std::function<absl::StatusOr<Decoded>(RowSink rows)>;

// Waits until an issued step is complete, and returns its result; called once.
using Stepping = std::function<absl::StatusOr<Stepped>()>;

// Executes the commands as one rank of a group; all ranks get the same commands. Called from one thread, one command at
// a time, in the order of the log. Messages of the returned errors are shown to users. May throw: the control channel
// turns exceptions into errors (std::bad_alloc into RESOURCE_EXHAUSTED).
class CommandHandler {
 public:
  virtual ~CommandHandler() = default;

  // Reads the configuration and the headers of the weight files in folder `model`; needs no earlier Load.
  virtual absl::StatusOr<ModelDescription> Describe(const std::string& model, const ComponentFiles& files) = 0;

  // Identifies the hardware and libraries that compute on a device, named as in LoadParameters. RESOURCE_EXHAUSTED if
  // the device is not available.
  virtual absl::StatusOr<DeviceIdentity> Identify(const std::string& device);

  // Loads a model. At most one is held: an earlier one is dropped first, with its jobs. RESOURCE_EXHAUSTED, and no
  // other error, means that the device or its memory is not available.
  virtual absl::StatusOr<Loaded> Load(const LoadParameters& parameters) = 0;

  // Returns the digest of the loaded model's files, which are read while other commands are executed. ABORTED if a file
  // was written or replaced since the model was loaded; FAILED_PRECONDITION if none is.
  virtual absl::StatusOr<ModelDigest> Digest();

  // `job` is new and not 0. After an error the job does not exist.
  virtual absl::StatusOr<JobStarted> StartJob(uint64_t job, const JobParameters& parameters) = 0;

  // Encodes the prompts of jobs that will start soon, if doing so early saves time. Returns the number of prompts that
  // are now encoded. An invalid job is not reported here but by its StartJob.
  virtual absl::StatusOr<int32_t> EncodePrompts(absl::Span<const JobParameters> jobs);

  // Executes one timestep for each of these distinct jobs; returns when the work is issued. NOT_FOUND for a job that
  // was never started or has ended, FAILED_PRECONDITION for one that has no steps left. The channel calls the returned
  // function before the next command. If steps_ahead(), it calls it on another thread instead, one step after another
  // and concurrently with later commands other than Load, so that the next step is issued while this one runs.
  virtual absl::StatusOr<Stepping> Step(absl::Span<const uint64_t> jobs) = 0;
  virtual bool steps_ahead() const { return false; }

  // Decodes the job's current latents (before the last step: a preview). The job does not change. The channel calls the
  // returned function before the next command. If decodes_during_steps(), it calls it on another thread instead, one
  // image after another and concurrently with later commands other than Load, for this job and others, its EndJob
  // included. Only rank 0 passes rows.
  virtual absl::StatusOr<Decoding> Decode(uint64_t job) = 0;
  virtual bool decodes_during_steps() const { return false; }

  // Returns the job's current latents on rank 0; other ranks may return no values.
  virtual absl::StatusOr<LatentValues> Latents(uint64_t job) = 0;

  // Predicts the model's output at the job's next step, guidance included, from these latents in place of the job's
  // own, which do not change. The prediction is computed in one batch with the jobs of `batch`, at their latents.
  // INVALID_ARGUMENT unless shapes agree.
  virtual absl::StatusOr<LatentValues> Predict(uint64_t job, const LatentValues& latents,
                                               absl::Span<const uint64_t> batch) = 0;

  // Frees a job; an unknown one is not an error.
  virtual absl::Status EndJob(uint64_t job) = 0;

  // Begins a training run on the model, which must be loaded for training. There is one run at a time; an earlier one
  // is dropped. UNIMPLEMENTED if the handler does not train. Jobs may run between training steps, on the current
  // weights.
  virtual absl::StatusOr<TrainingStarted> StartTraining(const TrainingStart& start);
  // Encodes at most this many further pictures with their captions. Train requires that all of them are encoded.
  virtual absl::StatusOr<SamplesPrepared> PrepareSamples(int64_t most);
  // Executes one optimizer step: forward and backward passes of a whole batch, over all ranks.
  virtual absl::StatusOr<Trained> Train();
  // Writes a checkpoint and, if `exports`, the trained weights in the form in which they are served. Failing to write a
  // checkpoint is not an error: the run can continue.
  virtual absl::StatusOr<TrainingSaved> SaveTraining(bool exports);
  // Writes the adapter's current weights to this file, replacing an existing one; writes no checkpoint. Failing to
  // write it is not an error either.
  virtual absl::StatusOr<TrainingSaved> ExportTraining(const std::string& path);
  virtual absl::StatusOr<TrainingEvaluated> EvaluateTraining();
};

// Answers the commands that are one call of the handler. The channel itself answers the others: commands about jobs,
// whose numbers it checks, and commands to the channel. Templates, so that only the channel needs the commands'
// headers.
template <std::same_as<DescribeModel> Command>
auto Answer(CommandHandler& handler, const Command& command) {
  return handler.Describe(command.model, command.files);
}
template <std::same_as<IdentifyDevice> Command>
auto Answer(CommandHandler& handler, const Command& command) {
  return handler.Identify(command.device);
}
template <std::same_as<DigestModel> Command>
auto Answer(CommandHandler& handler, const Command&) {
  return handler.Digest();
}
template <std::same_as<EncodePrompts> Command>
absl::StatusOr<typename Command::Reply> Answer(CommandHandler& handler, const Command& command) {
  const absl::StatusOr<int32_t> prompts = handler.EncodePrompts(command.jobs);
  if (!prompts.ok()) return prompts.status();
  return typename Command::Reply{.prompts = *prompts};
}
template <std::same_as<TrainingStart> Command>
auto Answer(CommandHandler& handler, const Command& command) {
  return handler.StartTraining(command);
}
template <std::same_as<PrepareSamples> Command>
auto Answer(CommandHandler& handler, const Command& command) {
  return handler.PrepareSamples(command.most);
}
template <std::same_as<TrainStep> Command>
absl::StatusOr<typename Command::Reply> Answer(CommandHandler& handler, const Command&) {
  return handler.Train();
}
template <std::same_as<SaveTraining> Command>
auto Answer(CommandHandler& handler, const Command& command) {
  return handler.SaveTraining(command.exports);
}
template <std::same_as<ExportTraining> Command>
auto Answer(CommandHandler& handler, const Command& command) {
  return handler.ExportTraining(command.path);
}
template <std::same_as<EvaluateTraining> Command>
absl::StatusOr<typename Command::Reply> Answer(CommandHandler& handler, const Command&) {
  return handler.EvaluateTraining();
}

}  // namespace tessera::control
