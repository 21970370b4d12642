#include "control/protocol/command_handler.h"

#include "control/protocol/commands.h"

namespace tessera::control {
namespace {

absl::Status DoesNotTrain() { return absl::UnimplementedError("this worker does not train"); }

}  // namespace

absl::StatusOr<DeviceIdentity> CommandHandler::Identify(const std::string&) { return DeviceIdentity(); }
absl::StatusOr<int32_t> CommandHandler::EncodePrompts(absl::Span<const JobParameters>) { return 0; }
absl::StatusOr<TrainingStarted> CommandHandler::StartTraining(const TrainingStart&) { return DoesNotTrain(); }
absl::StatusOr<SamplesPrepared> CommandHandler::PrepareSamples(int64_t) { return DoesNotTrain(); }
absl::StatusOr<Trained> CommandHandler::Train() { return DoesNotTrain(); }
absl::StatusOr<TrainingSaved> CommandHandler::SaveTraining(bool) { return DoesNotTrain(); }
absl::StatusOr<TrainingSaved> CommandHandler::ExportTraining(const std::string&) { return DoesNotTrain(); }
absl::StatusOr<TrainingEvaluated> CommandHandler::EvaluateTraining() { return DoesNotTrain(); }

}  // namespace tessera::control
