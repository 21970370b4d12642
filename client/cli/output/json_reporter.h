// JsonReporter prints events as one JSON object per line on standard output. It also prints errors on standard error.
#pragma once

#include <string>

#include "client/cli/output/reporter.h"

namespace tessera::client {

class JsonReporter final : public Reporter {
 public:
  void OnLoaded(const LoadedEvent& event) override;
  void OnStarted(int64_t image, const control::JobParameters& job, const control::JobStarted& started) override;
  void OnStep(int64_t image, int32_t steps, const control::Stepped& stepped) override;
  void OnPreview(int64_t image, int32_t step, const std::string& path) override;
  void OnImage(const PictureEvent& event) override;
  void OnWarning(const std::string& message) override;
  void OnActivity(const std::string& text) override;
  void OnDone(int64_t images, double seconds, uint64_t peak_memory_bytes) override;
  void OnError(const absl::Status& status, ExitCode code) override;
};

}  // namespace tessera::client
