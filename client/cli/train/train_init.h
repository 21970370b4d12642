// Implements `tessera train init`, which writes a configuration for a model and a folder of images.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/cli/interrupts.h"
#include "client/cli/session/model_options.h"

namespace tessera::client {

// As typed; empty if not typed.
struct TrainInitOptions {
  ModelOptions model;
  std::string images;
  std::vector<std::string> control;  // folders with the pictures that the model edits
  std::string output;
  std::string trigger_word;
  std::string type;
  std::string rank;
  std::string steps;
};

// Reads the model's description and every image of the folder, and writes the configuration. The file must not exist
// yet; "-" is the standard output. Findings are printed on standard error. Errors are marked with their stage
// (exit_code.h).
absl::Status InitTraining(const TrainInitOptions& options, Interrupts& interrupts);

}  // namespace tessera::client
