// CalibrateHost measures how fast ranks compute and exchange data on this host's processors or GPUs. Worker processes
// measure it once; later calls read the result from a file in the user's cache folder.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cli/interrupts.h"
#include "server/planning/calibration.h"

namespace tessera::client {

struct HostCalibrationOptions {
  control::Dtype dtype = control::Dtype::kFp32;
  int32_t threads = 0;  // shared by all ranks; 0: all that this process may use
  // One GPU per rank, in the syntax of --device. Empty: the processors.
  std::vector<std::string> gpus;
  int64_t width = 0, heads = 0;  // of the model's tokens; at least 1 each
  bool anew = false;             // measure even if the file has a result
};

// $XDG_CACHE_HOME/tessera, or ~/.cache/tessera; empty if neither variable is set.
std::string CacheFolder();

// `say` receives messages for the user: that measuring takes a while, or that the file could not be written, which is
// not an error. UNAVAILABLE if a worker fails; CANCELLED after an interruption.
absl::StatusOr<server::Calibration> CalibrateHost(const HostCalibrationOptions& options, Interrupts& interrupts,
                                                  const std::function<void(const std::string&)>& say);

}  // namespace tessera::client
