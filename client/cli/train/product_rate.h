// How fast a device here multiplies matrices, by which `tessera train --dry-run` says how long a run takes.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "client/cli/session/interrupts.h"

namespace tessera::client {

struct ProductRateOptions {
  std::string dtype, device;
  int32_t threads = 0;  // 0: all of the machine's
  int64_t rows = 1;     // of products [rows, width] · [width, width]
  int64_t width = 1;
};

// Operations a second of one device, by a worker process of its own. UNAVAILABLE where the device is not there, or the
// worker does not answer; CANCELLED after an interruption.
absl::StatusOr<double> MeasureProductRate(const ProductRateOptions& options, Interrupts& interrupts);

}  // namespace tessera::client
