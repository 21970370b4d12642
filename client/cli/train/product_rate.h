// Measures how fast a device of this machine multiplies matrices, from which `tessera train --dry-run` estimates how
// long a run takes.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "client/cli/interrupts.h"

namespace tessera::client {

struct ProductRateOptions {
  std::string dtype, device;
  int32_t threads = 0;  // 0: all processors of the machine
  int64_t rows = 1;     // for products [rows, width] · [width, width]
  int64_t width = 1;
};

// Returns the operations per second of one device, measured in a separate worker process. UNAVAILABLE if the device
// does not exist or the worker does not reply; CANCELLED after an interruption.
absl::StatusOr<double> MeasureProductRate(const ProductRateOptions& options, Interrupts& interrupts);

}  // namespace tessera::client
