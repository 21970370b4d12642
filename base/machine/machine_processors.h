// Determines how many processors this process may use, which is the only source of default thread counts. Linux only;
// does not use LibTorch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tessera::base {

struct MachineProcessors {
  // Processors that the process may run on: online, and in its affinity mask, which cpusets and taskset restrict. At
  // least 1.
  int32_t allowed = 1;
  // The processor time that its control group and each ancestor grant, in processors, the least of them: quota divided
  // by period from cpu.max, or from cpu.cfs_quota_us and cpu.cfs_period_us in version 1. Empty if none has a limit.
  std::optional<double> control_group;

  // At least 1. A fraction of a processor counts as one: 150000/100000 keeps two threads busy, one of them half the
  // time.
  int32_t available() const;
  std::string available_in() const;  // the name of the limit that applies
};

// Returns the numbers of the processors that the process's first thread may run on, ascending; empty if the kernel does
// not report them.
std::vector<int32_t> AllowedProcessors();

// Reads `root`/proc and `root`/sys for the control group; tests use a root that is not empty. The allowed processors
// are those that the kernel reports for the process's first thread.
MachineProcessors ReadMachineProcessors(const std::string& root = "");

}  // namespace tessera::base
