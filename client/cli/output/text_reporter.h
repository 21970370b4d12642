// TextReporter prints events for people: results on standard output, and a progress bar on standard error if that is a
// terminal.
#pragma once

#include <string>

#include "absl/time/time.h"
#include "client/cli/output/reporter.h"

namespace tessera::client {

class TextReporter final : public Reporter {
 public:
  explicit TextReporter(const ReporterOptions& options);
  ~TextReporter() override;

  void OnLoaded(const LoadedEvent& event) override;
  void OnStarted(int64_t image, const control::JobParameters& job, const control::JobStarted& started) override;
  void OnStep(int64_t image, int32_t steps, const control::Stepped& stepped) override;
  void OnPreview(int64_t image, int32_t step, const std::string& path) override;
  void OnImage(const PictureEvent& event) override;
  void OnWarning(const std::string& message) override;
  void OnActivity(const std::string& text) override;
  void OnDone(int64_t images, double seconds, uint64_t peak_memory_bytes) override;
  void OnError(const absl::Status& status, ExitCode code) override;

 private:
  void DrawBar(const std::string& text);
  void ClearBar();

  const ReporterOptions options_;
  const bool has_bar_;
  bool drawn_ = false;
  double step_seconds_ = 0;  // of the last step
};

// Progress within one of several images.
struct Progress {
  int64_t image = 0, images = 1;
  int32_t step = 0, steps = 0;
  double step_seconds = 0;  // of the last step; 0 if unknown
};

// Returns one line of fewer than `columns` characters with as much as fits: a bar, the step, its duration and the
// remaining time. After the last step, the line says that the image is being decoded.
std::string ProgressText(const Progress& progress, int columns);

// Returns a remaining time, rounded up: "1h02m", "3m05s", "12s".
std::string DurationText(double seconds);

}  // namespace tessera::client
