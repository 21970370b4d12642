// Calibration holds the rates that a machine's ranks were measured to reach, and its text in a small file. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "control/parameters/dtype.h"
#include "server/planning/machine.h"

namespace tessera::server {

// Identifies what the rates are valid for; under another key they are meaningless.
struct CalibrationKey {
  std::string worker;     // the measuring program: its version, and its file's size and time
  std::string processor;  // its name; for devices, the vendor's name of each
  int32_t threads = 1;    // of all ranks together; for devices, their number
  control::Dtype dtype = control::Dtype::kFp32;
  int64_t width = 0, heads = 0;  // of the model's tokens

  bool operator==(const CalibrationKey&) const = default;
};

struct Calibration {
  CalibrationKey key;
  std::vector<ProcessorShare> shares;  // for 1 to some number of ranks, each with every divisor that computes at once
};

// Returns the maximum number of ranks planned for this many threads: one per thread, up to the maximum of a group.
int MostRanks(int32_t threads);

// Parses what a worker of a group of `ranks` printed (runtime/engine/rank_rates.h). INVALID_ARGUMENT for anything else.
absl::StatusOr<std::vector<ProcessorShare>> SharesOf(int ranks, std::string_view printed);

// Returns one line of JSON.
std::string CalibrationText(const Calibration& calibration);

// Parses the text that CalibrationText made for that key; FAILED_PRECONDITION for another key. INVALID_ARGUMENT for a
// text that it cannot have made: rates that are not positive, or shares that are not those of 1 to MostRanks ranks.
absl::StatusOr<Calibration> ParseCalibration(std::string_view text, const CalibrationKey& key);

// Returns the name of its file, which is equal for equal keys.
std::string CalibrationFileName(const CalibrationKey& key);

// Returns the processors or devices as a machine; `memory_bytes` is the host's memory.
Machine MachineOf(const Calibration& calibration, double memory_bytes);

}  // namespace tessera::server
