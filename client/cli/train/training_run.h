// `tessera train CONFIG`: a training run from its configuration to what it made.
#pragma once

#include <string>

#include "client/cli/exit_code.h"
#include "client/cli/models/model_options.h"
#include "client/cli/session/interrupts.h"

namespace tessera::client {

struct TrainingRunOptions {
  ModelOptions model;    // of these the model folders, device, threads, command timeout and verbose
  std::string config;    // path
  std::string resume;    // "latest" or a checkpoint's folder; empty: from the model as it is
  bool dry_run = false;  // what the run will do and need is printed, and nothing is trained
  bool json = false;
  bool quiet = false;
};

// After an interruption the step under way is finished and a checkpoint is written; the code is then kInterrupted.
ExitCode RunTraining(const TrainingRunOptions& options, Interrupts& interrupts);

}  // namespace tessera::client
