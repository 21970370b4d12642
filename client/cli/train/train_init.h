// `tessera train init`: writes a configuration for a model and a folder of images.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "client/cli/models/model_options.h"
#include "client/cli/session/interrupts.h"

namespace tessera::client {

// As typed; empty where it was not.
struct TrainInitOptions {
  ModelOptions model;
  std::string images;
  std::string output;
  std::string trigger_word;
  std::string type;
  std::string rank;
  std::string steps;
};

// Looks at the model and at every image of the folder, and writes the file, which must not be there yet; "-" is the
// standard output. Says on standard error what it found. Errors know their stage (exit_code.h).
absl::Status InitTraining(const TrainInitOptions& options, Interrupts& interrupts);

}  // namespace tessera::client
