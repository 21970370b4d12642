// Events as one JSON object per line on standard output. Errors are also told on standard error.
#pragma once

#include <string>

#include "client/cli/output/reporter.h"

namespace tessera {

class JsonReporter final : public Reporter {
 public:
  void OnLoaded(const LoadedEvent& event) override;
  void OnStarted(int64_t image, const JobParameters& job, const JobStarted& started) override;
  void OnStep(int64_t image, int32_t steps, const Stepped& stepped) override;
  void OnPreview(int64_t image, int32_t step, const std::string& path) override;
  void OnImage(const PictureEvent& event) override;
  void OnWarning(const std::string& message) override;
  void OnActivity(const std::string& text) override;
  void OnDone(int64_t images, double seconds, uint64_t peak_memory_bytes) override;
  void OnError(const absl::Status& status, ExitCode code) override;
};

}  // namespace tessera
