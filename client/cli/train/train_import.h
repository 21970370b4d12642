// Implements `tessera train import FILE`, which writes the configuration of a run from that of another training
// program.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace tessera::client {

// As typed; empty if not typed.
struct TrainImportOptions {
  std::string file;
  std::string model;   // in place of the one that the file names
  std::string output;  // the file to write, which must not exist; "-" is the standard output
};

// Prints what has no equivalent on standard error, and begins the written file with it. Errors are marked with their
// stage (exit_code.h).
absl::Status ImportTraining(const TrainImportOptions& options);

}  // namespace tessera::client
