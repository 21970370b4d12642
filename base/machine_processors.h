// How many processors this process may keep busy: the one answer to how many threads there are by default. Linux;
// LibTorch-free.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tessera::base {

struct MachineProcessors {
  // Those that the process may run on: online, and in its affinity mask, which cpusets and taskset narrow. At least 1.
  int32_t allowed = 1;
  // The processors' worth of time that its control group and each group above it grant, the least of them: quota
  // through period of cpu.max, or of cpu.cfs_quota_us and cpu.cfs_period_us in version 1. Empty if none has a limit.
  std::optional<double> control_group;

  // At least 1. A fraction of a processor counts as one: 150000/100000 keeps two threads busy, one of them half the
  // time.
  int32_t available() const;
  std::string available_in() const;  // which of the two that is, in words
};

// The numbers of those that the process's first thread may run on, rising; empty where the kernel does not say.
std::vector<int32_t> AllowedProcessors();

// Reads `root`/proc and `root`/sys for the control group; a root other than the empty one is for tests. Which
// processors are allowed the kernel tells itself, of the process's first thread.
MachineProcessors ReadMachineProcessors(const std::string& root = "");

}  // namespace tessera::base
