// MetricsLog writes the metrics of a training run as JSON lines: one object per line, with the step, the time and the
// measured values. Programs that follow a run read the file while it grows.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "control/training_log/record_file.h"

namespace tessera::control {

// One measured number: "loss", "grad_norm", "images_per_second".
struct Metric {
  std::string name;
  double value = 0;
};

// Movable; one thread at a time.
class MetricsLog {
 public:
  // Opens or creates the file to continue after `last_step`, the step of the checkpoint from which the run resumes (0
  // for a new run). Removes the lines of later steps, which the run will repeat, and an incomplete last line that a
  // killed process left. InvalidArgument, naming the line, if the file is not such a log; disk errors as for
  // base::WriteFileAtomically.
  static absl::StatusOr<MetricsLog> Open(const std::string& path, int64_t last_step);

  // Appends {"step": 100, "time": 1700000000.25, "loss": 0.5, …, "event": "…"}, where time is in seconds since 1970 and
  // an empty event is omitted. Non-finite numbers become null. Errors as for RecordFile::Append.
  absl::Status Append(int64_t step, double time, std::span<const Metric> metrics, std::string_view event = {});

 private:
  explicit MetricsLog(RecordFile file) : file_(std::move(file)) {}

  RecordFile file_;
};

}  // namespace tessera::control
