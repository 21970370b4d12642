#include "client/cli/exit_code.h"

#include <string>

#include "absl/strings/cord.h"

namespace tessera::client {
namespace {

constexpr char kStagePayload[] = "tessera.stage";

}  // namespace

ExitCode ExitCodeFor(Stage stage, const absl::Status& status) {
  if (status.code() == absl::StatusCode::kCancelled) return ExitCode::kInterrupted;
  if (stage == Stage::kOutput) return ExitCode::kOutput;
  if (status.code() == absl::StatusCode::kUnavailable) return ExitCode::kWorker;
  if (status.code() == absl::StatusCode::kResourceExhausted) return ExitCode::kDevice;
  switch (stage) {
    case Stage::kOptions:
      return ExitCode::kUsage;
    case Stage::kModel:
      return ExitCode::kModel;
    case Stage::kJob:
      return status.code() == absl::StatusCode::kInvalidArgument ? ExitCode::kUsage : ExitCode::kInternal;
    case Stage::kOutput:
      break;
  }
  return ExitCode::kInternal;
}

absl::Status At(Stage stage, absl::Status status) {
  if (!status.ok() && !status.GetPayload(kStagePayload).has_value()) {
    status.SetPayload(kStagePayload, absl::Cord(std::string(1, static_cast<char>(stage))));
  }
  return status;
}

Stage StageOf(const absl::Status& error) {
  const auto stage = error.GetPayload(kStagePayload);
  return stage.has_value() ? static_cast<Stage>((*stage)[0]) : Stage::kOptions;
}

}  // namespace tessera::client
