// What a machine's ranks were measured to reach on its processors, as a small file keeps it. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "control/placement.h"
#include "server/planning/machine.h"

namespace tessera::server {

// What the figures hold for: under another key they say nothing.
struct CalibrationKey {
  std::string worker;     // the program that measured: its version and its file
  std::string processor;  // by name; of devices by what their maker calls each
  int32_t threads = 1;    // of all ranks together; of devices their number
  control::Dtype dtype = control::Dtype::kFp32;
  int64_t width = 0, heads = 0;  // of the model's tokens

  bool operator==(const CalibrationKey&) const = default;
};

struct Calibration {
  CalibrationKey key;
  std::vector<ProcessorShare> shares;  // of 1 to some number of ranks, each with every divisor that computes at once
};

// The most ranks that so many threads are planned for: one each, and no more than a group has.
int MostRanks(int32_t threads);

// What a worker of a group of `ranks` printed (runtime/engine/rank_rates.h). InvalidArgument for anything else.
absl::StatusOr<std::vector<ProcessorShare>> SharesOf(int ranks, std::string_view printed);

// JSON, a line.
std::string CalibrationText(const Calibration& calibration);

// What CalibrationText made for that key; FailedPrecondition for another key. InvalidArgument for what it cannot have
// made: rates that are no positive numbers, or shares that are not those of 1 to MostRanks ranks.
absl::StatusOr<Calibration> ParseCalibration(std::string_view text, const CalibrationKey& key);

// A name for its file, the same for equal keys.
std::string CalibrationFileName(const CalibrationKey& key);

// The processors or devices as a machine; `memory_bytes` are those of the host.
Machine MachineOf(const Calibration& calibration, double memory_bytes);

}  // namespace tessera::server
