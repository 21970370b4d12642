// What a front end asks of a worker group about a training run, as plain structs; they mirror the messages of
// proto/tessera/internal/control.proto. Free of LibTorch and protobuf.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::control {

struct TrainingStart {
  std::string config;      // the text of the run's configuration
  std::string checkpoint;  // the folder to go on from, or "latest" of the run's own; empty: from the model as it is
};

struct TrainingStarted {
  int64_t step = 0;  // steps of the optimizer done so far
  int64_t trained_parameters = 0;
  int64_t samples = 0;     // pictures with captions, repetitions not counted
  std::string checkpoint;  // the folder that it goes on from; empty: none
  std::vector<std::string> warnings;
};

struct SamplesPrepared {
  int64_t prepared = 0;         // so far
  int64_t samples = 0;          // of so many
  int64_t cached_pictures = 0;  // of those prepared, whose encoding was on the disk
  int64_t cached_captions = 0;
  std::vector<std::string> warnings;
};

struct Trained {
  int64_t step = 0;          // steps done
  double loss = 0;           // of the whole batch
  double gradient_norm = 0;  // of all parameters, before clipping
  double learning_rate = 0;
  double seconds = 0;
  // Loss or gradients were not finite, or the loss exceeded train.max_loss_ratio, and nothing was changed.
  bool skipped = false;
  double loss_ratio = 0;  // of the loss to the running mean of the run's finite losses before; 0: there are none
};

struct TrainingSaved {
  std::string checkpoint;  // folder; empty: not written, for the reason in the warnings
  std::string exported;    // file or folder; empty: none
  double seconds = 0;
  std::vector<std::string> warnings;
};

struct TrainingEvaluated {
  std::vector<double> losses;  // at each of the fixed timesteps
};

}  // namespace tessera::control
