// TrainingReporter shows the progress of `tessera train`: a progress line for people, or JSON lines for programs.
// docs/fine-tuning.md documents the JSON events and their fields.
#pragma once

#include <cstdint>
#include <string>

#include "client/cli/output/reporter.h"
#include "client/cli/train/adapter_publisher.h"
#include "control/protocol/training_commands.h"

namespace tessera::client {

// Used by one thread. Warnings and errors are reported by the Reporter that it is given.
class TrainingReporter {
 public:
  struct Options {
    bool json = false;
    bool quiet = false;            // for people: only the saved files
    int64_t steps = 0;             // of the whole run
    int64_t images_of_a_step = 1;  // over all ranks and accumulated passes
  };

  TrainingReporter(const Options& options, Reporter& reporter);
  ~TrainingReporter();

  void OnStarted(const control::TrainingStarted& started, double load_seconds);
  void OnPrepared(const control::SamplesPrepared& prepared);
  void OnTrained(const control::Trained& trained);
  void OnEvaluated(int64_t step, const control::TrainingEvaluated& evaluated);
  void OnSample(int64_t step, const std::string& path);
  void OnGrid(int64_t step, const std::string& path);
  void OnSaved(int64_t step, const control::TrainingSaved& saved);
  void OnPublished(int64_t step, const std::string& name, const Publication& published);
  void OnDone(int64_t step, double seconds, uint64_t peak_memory_bytes);

 private:
  void OnPicture(const char* event, int64_t step, const std::string& path);
  void Draw(const std::string& line);  // overwrites the previous line if standard error is a terminal
  void Clear();
  void Say(const std::string& line);

  const Options options_;
  Reporter& reporter_;
  const bool has_line_;
  bool drawn_ = false;
  double step_seconds_ = 0;  // moving average, for the remaining time
};

// "encoding images and captions: 8 of 20, 8 images and 7 captions from the cache".
std::string PreparedText(const control::SamplesPrepared& prepared);

// "step 12/1000, loss 0.1234, lr 1e-04, 8.1 images/s, 2m03s left".
std::string TrainingText(const control::Trained& trained, int64_t steps, int64_t images_of_a_step, double step_seconds);

}  // namespace tessera::client
