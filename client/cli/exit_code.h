// Defines the exit codes that docs/command-line.md documents.
#pragma once

#include <utility>

#include "absl/status/statusor.h"

namespace tessera::client {

enum class ExitCode : int {
  kOk = 0,
  kInternal = 1,
  kUsage = 2,        // an invalid option or value
  kModel = 3,        // the model cannot be found or read
  kDevice = 4,       // the device or the memory is not available
  kOutput = 5,       // a file or standard output cannot be written
  kWorker = 6,       // the worker died, could not be started or did not answer
  kDiffers = 7,      // replay: the new image differs
  kUnfit = 8,        // doctor: a server cannot run here in the current state
  kItemsFailed = 9,  // batch: all items have ended, and some of them failed
  kInterrupted = 130,
};

// For help texts and manual pages, in the order of the codes.
struct ExitMeaning {
  ExitCode code;
  const char* text;
};

inline constexpr ExitMeaning kExitMeanings[] = {
    {ExitCode::kOk, "done"},
    {ExitCode::kInternal, "internal error"},
    {ExitCode::kUsage, "invalid option or value"},
    {ExitCode::kModel, "model cannot be read"},
    {ExitCode::kDevice, "device or memory not available"},
    {ExitCode::kOutput, "output cannot be written"},
    {ExitCode::kWorker, "worker died or server not reached"},
    {ExitCode::kDiffers, "replay differs"},
    {ExitCode::kUnfit, "doctor found a failure"},
    {ExitCode::kItemsFailed, "items of a batch failed"},
    {ExitCode::kInterrupted, "interrupted"},
};

// The stage of a command in which an error occurred.
enum class Stage { kOptions, kModel, kJob, kOutput };

// `status` is not OK. In every stage except kOutput, UNAVAILABLE means that the worker ended and CANCELLED that the
// user interrupted the command.
ExitCode ExitCodeFor(Stage stage, const absl::Status& status);

// Marks an error with the stage, unless it is already marked.
absl::Status At(Stage stage, absl::Status status);
template <typename Value>
absl::StatusOr<Value> At(Stage stage, absl::StatusOr<Value> result) {
  if (result.ok()) return result;
  return At(stage, std::move(result).status());
}

// Returns the stage that At marked the error with; else kOptions.
Stage StageOf(const absl::Status& error);

}  // namespace tessera::client
