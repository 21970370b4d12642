#include "client/cli/exit_code.h"

namespace tessera {

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

}  // namespace tessera
