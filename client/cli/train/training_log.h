// TrainingLog writes the logs of `tessera train`, in addition to its checkpoints: log.jsonl and TensorBoard event
// files. docs/fine-tuning.md documents the names of the metrics.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "control/protocol/training_commands.h"
#include "control/training_log/event_file.h"
#include "control/training_log/metrics_log.h"

namespace tessera::client {

// Used by one thread. No error of these files ends a run: `warn` is called with the first error, and again with the
// first one after a successful write.
class TrainingLog {
 public:
  struct Options {
    std::string folder;            // the run's folder; created if it does not exist
    int64_t first_step = 0;        // steps completed earlier
    int64_t images_of_a_step = 1;  // over all ranks and accumulated passes
    std::function<void(const std::string&)> warn;
    std::function<double()> now;  // seconds since 1970
  };

  explicit TrainingLog(Options options);

  void OnTrained(const control::Trained& trained);
  void OnEvaluated(int64_t step, const control::TrainingEvaluated& evaluated);
  // The image of a prompt, by the prompt's number.
  void OnSample(int64_t step, size_t prompt, const std::string& path);
  // One picture with the images of all prompts.
  void OnGrid(int64_t step, const std::string& path);
  void OnSaved(int64_t step, const control::TrainingSaved& saved);

 private:
  void Add(int64_t step, const std::vector<control::Metric>& metrics);
  void AddPicture(int64_t step, const std::string& tag, const std::string& path);
  void Report(const absl::Status& status);

  const Options options_;
  std::optional<control::MetricsLog> lines_;  // absent if it could not be opened
  std::optional<control::EventFile> events_;
  bool warned_ = false;  // the last write failed
};

}  // namespace tessera::client
