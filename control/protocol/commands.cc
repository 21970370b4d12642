#include "control/protocol/commands.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/fields/field_error.h"
#include "control/pictures/picture_frames.h"
#include "control/protocol/command_handler.h"

namespace tessera::control {

static_assert(kMaxRunSteps == kMaxSteps && kMaxFrameSide == kMaxImageSide);  // of a job's replies and its parameters

namespace {

template <class Reply>
Frames ShapeOfReply(const Reply& reply) {
  return {.width = reply.width, .height = reply.height, .count = reply.frames, .channels = reply.channels, .bytes = {}};
}

absl::Status DoesNotTrain() { return absl::UnimplementedError("this worker does not train"); }

}  // namespace

Frames ShapeOf(const JobStarted& started) { return ShapeOfReply(started); }
Frames ShapeOf(const Decoded& decoded) { return ShapeOfReply(decoded); }

absl::Status CheckRules(const JobStarted& started) {
  const Frames frames = ShapeOf(started);
  if (frames.rows() * frames.row_bytes() <= kMaxFramesBytes) return absl::OkStatus();
  return base::ErrorOfField("frames",
                            absl::StrCat(" is ", started.frames, " of ", started.width, "x", started.height, " and ",
                                         started.channels, " channels; valid are at most ", kMaxFramesBytes, " bytes"));
}

absl::Status CheckRules(const StepsMade& made) {
  return made.steps.empty() ? base::ErrorOfField("steps", " is empty") : absl::OkStatus();
}

absl::Status CheckRules(const MakeSteps& steps) {
  return steps.jobs.empty() ? base::ErrorOfField("jobs", " is empty; a batch has at least one job") : absl::OkStatus();
}

absl::Status CheckRules(const LatentValues& latents) {
  uint64_t values = 1;
  for (const int64_t size : latents.shape) {
    if (static_cast<uint64_t>(size) > (uint64_t{1} << 24) / values) {
      return base::ErrorOfField("shape", " has more values than latents can have");
    }
    values *= static_cast<uint64_t>(size);
  }
  if (latents.values.empty() || latents.values.size() == values) return absl::OkStatus();
  return base::ErrorOfField("values", absl::StrCat(" has ", latents.values.size(), " entries for a shape of ", values));
}

absl::Status CheckRules(const PredictFrom& command) {
  if (command.latents.values.empty()) return base::ErrorOfField("values", " is empty");
  if (std::ranges::find(command.others, command.job) == command.others.end()) return absl::OkStatus();
  return base::ErrorOfField("others", absl::StrCat(" has job ", command.job, ", which is predicted already"));
}

absl::Status CheckRules(const SamplesPrepared& prepared) {
  return prepared.prepared <= prepared.samples ? absl::OkStatus()
                                               : base::ErrorOfField("prepared", " is more than the samples");
}

absl::Status CheckRules(const ExportTraining& command) {
  return command.path.empty() ? base::ErrorOfField("path", " is empty; it must be a file") : absl::OkStatus();
}

// A worker that does not define a command answers so.
absl::StatusOr<DeviceIdentity> CommandHandler::Identify(const std::string&) { return DeviceIdentity(); }

absl::StatusOr<ModelDigest> CommandHandler::Digest() { return ModelDigest(); }
absl::StatusOr<int32_t> CommandHandler::EncodePrompts(absl::Span<const JobParameters>) { return 0; }
absl::StatusOr<TrainingStarted> CommandHandler::StartTraining(const TrainingStart&) { return DoesNotTrain(); }
absl::StatusOr<SamplesPrepared> CommandHandler::PrepareSamples(int64_t) { return DoesNotTrain(); }
absl::StatusOr<Trained> CommandHandler::Train() { return DoesNotTrain(); }
absl::StatusOr<TrainingSaved> CommandHandler::SaveTraining(bool) { return DoesNotTrain(); }
absl::StatusOr<TrainingSaved> CommandHandler::ExportTraining(const std::string&) { return DoesNotTrain(); }
absl::StatusOr<TrainingEvaluated> CommandHandler::EvaluateTraining() { return DoesNotTrain(); }

}  // namespace tessera::control
