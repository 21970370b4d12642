// Exit codes of the command line, as docs/command-line.md promises them.
#pragma once

#include <utility>

#include "absl/status/statusor.h"

namespace tessera::client {

enum class ExitCode : int {
  kOk = 0,
  kInternal = 1,
  kUsage = 2,        // an option or a value that is not valid
  kModel = 3,        // the model cannot be found or read
  kDevice = 4,       // the device or the memory is not available
  kOutput = 5,       // a file or standard output cannot be written
  kWorker = 6,       // the worker died, could not be started or did not answer
  kDiffers = 7,      // replay: another image came out
  kUnfit = 8,        // doctor: a server cannot run here as it is
  kItemsFailed = 9,  // batch: all items have ended, and some of them failed
  kInterrupted = 130,
};

// For helps and manual pages, in the order of the codes.
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

// What a command was about when an error came up.
enum class Stage { kOptions, kModel, kJob, kOutput };

// `status` is not OK. UNAVAILABLE stands for the worker's end and CANCELLED for an interruption in every stage but
// kOutput.
ExitCode ExitCodeFor(Stage stage, const absl::Status& status);

// Says of an error, where nothing has said so yet, that it came up in this stage.
absl::Status At(Stage stage, absl::Status status);
template <typename Value>
absl::StatusOr<Value> At(Stage stage, absl::StatusOr<Value> result) {
  if (result.ok()) return result;
  return At(stage, std::move(result).status());
}

// What At has said of the error; else kOptions.
Stage StageOf(const absl::Status& error);

}  // namespace tessera::client
