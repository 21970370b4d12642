// EventFile writes the metrics of a training run for TensorBoard: a file of TFRecords, each of which is a
// tensorflow.Event.
//
// The framing follows tensorflow/core/lib/io/record_writer.h: the length as 8 bytes little-endian, its masked CRC-32C,
// the bytes, their masked CRC-32C. The messages are those of tensorflow/core/util/event.proto and
// tensorflow/core/framework/summary.proto, of which a few fields are written.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "control/training_log/metrics_log.h"
#include "control/training_log/record_file.h"

namespace tessera::control {

// Movable; one thread at a time. Times are in seconds since 1970.
class EventFile {
 public:
  // Creates a new file in the folder, which must exist. `first_step` is the step from which the run continues:
  // TensorBoard then drops the data of earlier files in the folder for this step and later ones. Errors as for
  // base::WriteFileAtomically.
  static absl::StatusOr<EventFile> Create(const std::string& folder, double time, int64_t first_step);

  const std::string& path() const { return file_.path(); }

  // Appends the numbers, rounded to fp32, under their names. Errors as for RecordFile::Append.
  absl::Status AddScalars(int64_t step, double time, std::span<const Metric> metrics);

  // Appends a picture. InvalidArgument if it is not a PNG; otherwise as for AddScalars.
  absl::Status AddImage(int64_t step, double time, const std::string& name, std::string_view png);

 private:
  explicit EventFile(RecordFile file) : file_(std::move(file)) {}

  absl::Status AddRecord(std::string_view event);

  RecordFile file_;
};

// The CRC-32C of a record, masked as TFRecord readers expect. Masking keeps checksums useful for data that contains
// checksums.
uint32_t MaskedCrc32c(std::string_view bytes);

}  // namespace tessera::control
