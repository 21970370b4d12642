// Defines the commands of a training run, and the reply to each. Plain values, free of LibTorch and protobuf.
#pragma once

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "base/fields/fields.h"
#include "control/protocol/command_number.h"

namespace tessera::control {

struct TrainingStarted {
  int64_t step = 0;  // optimizer steps done so far
  int64_t trained_parameters = 0;
  int64_t samples = 0;     // pictures with captions, repetitions not counted
  std::string checkpoint;  // the folder that the run resumes from; empty: none
  std::vector<std::string> warnings;
};
constexpr auto FieldsOf(const TrainingStarted*) {
  using base::Field, base::Integer;
  using T = TrainingStarted;
  return std::tuple(Field("step", &T::step, Integer{.low = 0}), Field("trained_parameters", &T::trained_parameters),
                    Field("samples", &T::samples, Integer{.low = 1}), Field("checkpoint", &T::checkpoint, base::kPath),
                    Field("warnings", &T::warnings));
}

// Begins a training run on the model, which must be loaded for training. An earlier run is dropped.
struct TrainingStart {
  std::string config;      // the text of the run's configuration
  std::string checkpoint;  // the folder to resume from, or "latest" of the run; empty: start from the model's weights

  using Reply = TrainingStarted;
  static constexpr bool kIsLong = true;
};
constexpr auto FieldsOf(const TrainingStart*) {
  return std::tuple(base::Field("config", &TrainingStart::config, base::kPath),
                    base::Field("checkpoint", &TrainingStart::checkpoint, base::kPath));
}

struct SamplesPrepared {
  int64_t prepared = 0;         // so far
  int64_t samples = 0;          // in total
  int64_t cached_pictures = 0;  // prepared samples whose encoding was read from the disk
  int64_t cached_captions = 0;
  std::vector<std::string> warnings;
};
constexpr auto FieldsOf(const SamplesPrepared*) {
  using base::Field;
  using S = SamplesPrepared;
  return std::tuple(Field("prepared", &S::prepared, base::Integer{.low = 0}), Field("samples", &S::samples),
                    Field("cached_pictures", &S::cached_pictures), Field("cached_captions", &S::cached_captions),
                    Field("warnings", &S::warnings));
}
absl::Status CheckRules(const SamplesPrepared& prepared);

// Encodes the run's next pictures with their captions. TrainStep requires that all of them are encoded.
struct PrepareSamples {
  int64_t most = 1;  // samples

  using Reply = SamplesPrepared;
  static constexpr bool kIsLong = true;
};
constexpr auto FieldsOf(const PrepareSamples*) {
  return std::tuple(base::Field("most", &PrepareSamples::most, base::Integer{1, uint64_t{1} << 32}));
}

struct Trained {
  int64_t step = 0;          // steps done
  double loss = 0;           // of the whole batch
  double gradient_norm = 0;  // of all parameters, before clipping
  double learning_rate = 0;
  double seconds = 0;
  // The loss or the gradients were not finite, or the loss exceeded train.max_loss_ratio; no weight was changed.
  bool skipped = false;
  double loss_ratio = 0;  // loss divided by the running mean of the run's earlier finite losses; 0: there are none
};
constexpr auto FieldsOf(const Trained*) {
  using base::Field;
  using T = Trained;
  return std::tuple(Field("step", &T::step), Field("loss", &T::loss), Field("gradient_norm", &T::gradient_norm),
                    Field("learning_rate", &T::learning_rate), Field("seconds", &T::seconds),
                    Field("skipped", &T::skipped), Field("loss_ratio", &T::loss_ratio));
}

// Executes one optimizer step: forward and backward passes of a whole batch, over all ranks.
struct TrainStep {
  using Reply = Trained;
  static constexpr bool kIsLong = true;
};
constexpr auto FieldsOf(const TrainStep*) { return std::tuple(); }

struct TrainingSaved {
  std::string checkpoint;  // folder; empty: not written, and the warnings contain the reason
  std::string exported;    // file or folder; empty: none
  double seconds = 0;
  std::vector<std::string> warnings;
};
constexpr auto FieldsOf(const TrainingSaved*) {
  using base::Field;
  using S = TrainingSaved;
  return std::tuple(Field("checkpoint", &S::checkpoint, base::kPath), Field("exported", &S::exported, base::kPath),
                    Field("seconds", &S::seconds), Field("warnings", &S::warnings));
}

// Writes a checkpoint. Failing to write one is not an error: the run can continue.
struct SaveTraining {
  bool exports = false;  // also writes the trained weights in the form in which they are served

  using Reply = TrainingSaved;
  static constexpr bool kIsLong = true;
};
constexpr auto FieldsOf(const SaveTraining*) { return std::tuple(base::Field("exports", &SaveTraining::exports)); }

// Writes the adapter's current weights to this file, which is replaced. Failing to write it is not an error either.
struct ExportTraining {
  std::string path;

  using Reply = TrainingSaved;
  static constexpr bool kIsLong = true;
};
constexpr auto FieldsOf(const ExportTraining*) {
  return std::tuple(base::Field("path", &ExportTraining::path, base::kPath));
}
absl::Status CheckRules(const ExportTraining& command);

struct TrainingEvaluated {
  std::vector<double> losses;  // at each of the fixed timesteps
};
constexpr auto FieldsOf(const TrainingEvaluated*) {
  return std::tuple(base::Field("losses", &TrainingEvaluated::losses));
}

struct EvaluateTraining {
  using Reply = TrainingEvaluated;
  static constexpr bool kIsLong = true;
};
constexpr auto FieldsOf(const EvaluateTraining*) { return std::tuple(); }

using TrainingCommands =
    std::tuple<TrainingStart, PrepareSamples, TrainStep, SaveTraining, ExportTraining, EvaluateTraining>;
template <CommandOf<TrainingCommands> Command>
inline constexpr uint32_t kCommandNumber<Command> = 2 * kMostCommandsOfList + kCommandIndex<Command, TrainingCommands>;

}  // namespace tessera::control
