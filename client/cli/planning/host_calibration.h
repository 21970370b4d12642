// How fast ranks compute and exchange on this host's processors or GPUs: from a file in the user's cache folder, or
// measured now, by worker processes, and kept there.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cli/session/interrupts.h"
#include "server/planning/calibration.h"

namespace tessera::client {

struct HostCalibrationOptions {
  control::Dtype dtype = control::Dtype::kFp32;
  int32_t threads = 0;  // of all ranks; 0: all that this process may use
  // GPUs, one of each rank, as --device takes them. Empty: the processors.
  std::vector<std::string> gpus;
  int64_t width = 0, heads = 0;  // of the model's tokens; both at least 1
  bool anew = false;             // measure whatever the file says
};

// $XDG_CACHE_HOME/tessera, or ~/.cache/tessera.
std::string CalibrationFolder();

// `say` gets what the user should know: that measuring takes a while, or that the file could not be written, which is
// no error. UNAVAILABLE where a worker fails; CANCELLED after an interruption.
absl::StatusOr<server::Calibration> CalibrateHost(const HostCalibrationOptions& options, Interrupts& interrupts,
                                                  const std::function<void(const std::string&)>& say);

}  // namespace tessera::client
