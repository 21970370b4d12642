// Events for people: results on standard output, a progress bar on standard error where that is a terminal.
#pragma once

#include <string>

#include "absl/time/time.h"
#include "client/reporter.h"

namespace tessera {

class TextReporter final : public Reporter {
 public:
  explicit TextReporter(const ReporterOptions& options);
  ~TextReporter() override;

  void OnLoaded(const LoadedEvent& event) override;
  void OnStarted(int64_t image, const JobParameters& job, const JobStarted& started) override;
  void OnStep(int64_t image, int32_t steps, const Stepped& stepped) override;
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

// "1h02m", "3m05s", "12s": how long is left, rounded up.
std::string DurationText(double seconds);

}  // namespace tessera
