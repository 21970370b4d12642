// The metrics of a training run as JSON lines: one object for each line, with the step, the time and whatever was
// measured. What follows a run reads the file while it grows.
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
  // Opens the file, which is made if need be, to go on after `last_step`, that of the checkpoint from which the run
  // resumes (0 for a new run): lines of later steps, which will come again, go, and so does the part of a line that a
  // killed process left at the end. InvalidArgument, naming the line, if the file is not such a log; errors of the disk
  // as base::WriteFileAtomically.
  static absl::StatusOr<MetricsLog> Open(const std::string& path, int64_t last_step);

  // Adds {"step": 100, "time": 1700000000.25, "loss": 0.5, …, "event": "…"}, where time is in seconds since 1970 and an
  // empty event is left out. Numbers that are not finite are null. Errors as RecordFile::Append.
  absl::Status Append(int64_t step, double time, std::span<const Metric> metrics, std::string_view event = {});

 private:
  explicit MetricsLog(RecordFile file) : file_(std::move(file)) {}

  RecordFile file_;
};

}  // namespace tessera::control
