// CommandHandler executes the commands of a control channel. The worker's engine is one, and so are the fakes of tests.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "control/commands.h"

namespace tessera::control {

// Takes whole rows of 8-bit RGB, top to bottom without a gap; `first` is the index of the first of them. Decode returns
// the error of a call that failed.
using RowSink = absl::FunctionRef<absl::Status(int32_t first, absl::Span<const uint8_t> rgb)>;

// Makes one image's pixels; called once.
using Decoding = std::function<absl::StatusOr<Decoded>(RowSink rows)>;

// Waits until a step that was issued is done, and returns its result; called once.
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

// How a handler answers the commands that are one call of it. The channel answers the others: those of jobs, whose
// numbers it checks, and those of the channel.
inline auto Answer(CommandHandler& handler, const DescribeModel& command) { return handler.Describe(command.model); }
inline auto Answer(CommandHandler& handler, const IdentifyDevice& command) { return handler.Identify(command.device); }
inline absl::StatusOr<PromptsEncoded> Answer(CommandHandler& handler, const EncodePrompts& command) {
  const absl::StatusOr<int32_t> prompts = handler.EncodePrompts(command.jobs);
  if (!prompts.ok()) return prompts.status();
  return PromptsEncoded{.prompts = *prompts};
}
inline auto Answer(CommandHandler& handler, const TrainingStart& command) { return handler.StartTraining(command); }
inline auto Answer(CommandHandler& handler, const PrepareSamples& command) {
  return handler.PrepareSamples(command.most);
}
inline auto Answer(CommandHandler& handler, const TrainStep&) { return handler.Train(); }
inline auto Answer(CommandHandler& handler, const SaveTraining& command) {
  return handler.SaveTraining(command.exports);
}
inline auto Answer(CommandHandler& handler, const ExportTraining& command) {
  return handler.ExportTraining(command.path);
}
inline auto Answer(CommandHandler& handler, const EvaluateTraining&) { return handler.EvaluateTraining(); }

}  // namespace tessera::control
