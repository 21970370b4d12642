// Which captions a run will cut, which `tessera train --dry-run` warns of as the run does.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "client/cli/session/interrupts.h"
#include "control/training/dataset.h"

namespace tessera::client {

// The warning (control::CutCaptionsText), or nothing where the model cuts no caption of the set. A worker process
// answers, from the model's tokenizers alone. UNAVAILABLE where it does not; CANCELLED after an interruption.
absl::StatusOr<std::string> FindCutCaptions(const std::string& model, const control::TrainingSet& set,
                                            Interrupts& interrupts);

}  // namespace tessera::client
