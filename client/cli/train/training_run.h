// Implements `tessera train CONFIG`: a training run from its configuration to its results.
#pragma once

#include <string>

#include "client/cli/exit_code.h"
#include "client/cli/interrupts.h"
#include "client/cli/session/model_options.h"

namespace tessera::client {

struct TrainingRunOptions {
  ModelOptions model;    // uses only model folders, device, threads, command timeout and verbose
  std::string config;    // path
  std::string resume;    // "latest" or a checkpoint's folder; empty: start from the model
  bool dry_run = false;  // print what the run will do and need, without training
  bool json = false;
  bool quiet = false;
};

// After an interruption, the current step is finished and a checkpoint is written; the code is then kInterrupted.
ExitCode RunTraining(const TrainingRunOptions& options, Interrupts& interrupts);

}  // namespace tessera::client
