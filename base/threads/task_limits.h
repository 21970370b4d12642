// Determines how many processes and threads this process may still start. Linux only, where each thread counts like a
// process; does not use LibTorch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace tessera::base {

struct TaskLimit {
  std::string name;  // of the limit, for people
  std::string remedy;
  int64_t most = 0;
  int64_t used = 0;  // as far as this process can see
};

// Returns the limits that apply to this process: RLIMIT_NPROC, which counts the user's processes and does not apply to
// root, and pids.max of the control group and its ancestors. Reads `root`/proc and `root`/sys; tests use a root that is
// not empty.
std::vector<TaskLimit> ReadTaskLimits(const std::string& root = "");

// Returns RESOURCE_EXHAUSTED if a limit does not leave `needed` more processes and threads. The message has the limit's
// name and value, the number needed, and how to raise the limit.
absl::Status CheckTaskLimits(int64_t needed, const std::vector<TaskLimit>& limits);

}  // namespace tessera::base
