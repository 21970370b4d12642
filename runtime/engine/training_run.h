// TrainingRun is a training run on a loaded model.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "control/model/model_description.h"
#include "runtime/engine/model_loader.h"
#include "runtime/training/trainer.h"

namespace tessera::control {
struct TrainingStart;
}

namespace tessera::runtime {

// Used by one thread, which must not be in c10::InferenceMode.
class TrainingRun final {
 public:
  // `model`, which was loaded for training, outlives the run. Returns the errors of Trainer::Create and of describing
  // the model.
  static absl::StatusOr<std::unique_ptr<TrainingRun>> Start(const control::TrainingStart& start, LoadedModel& model);

  Trainer& trainer() const { return *trainer_; }

 private:
  TrainingRun() = default;

  control::ModelDescription description_;  // of the model, for trainer_
  std::unique_ptr<Trainer> trainer_;
};

}  // namespace tessera::runtime
