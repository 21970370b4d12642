// Finds the captions that a run will cut, so that `tessera train --dry-run` can print the same warning as the run.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "client/cli/interrupts.h"
#include "control/training/dataset.h"

namespace tessera::client {

// Returns the warning (control::CutCaptionsText), empty if the model cuts no caption of the set. A worker process finds
// them, with only the model's tokenizers loaded. UNAVAILABLE if it does not reply; CANCELLED after an interruption.
absl::StatusOr<std::string> FindCutCaptions(const std::string& model, const control::TrainingSet& set,
                                            Interrupts& interrupts);

}  // namespace tessera::client
