// How many processes and threads this process may still start. Linux, where each thread counts as a process does;
// LibTorch-free.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace tessera::base {

struct TaskLimit {
  std::string name;  // of the limit, in words
  std::string remedy;
  int64_t most = 0;
  int64_t used = 0;  // as far as this process can see
};

// Those that bind this process: RLIMIT_NPROC, which counts the user's processes and does not bind root, and pids.max of
// the control group and each above it. Reads `root`/proc and `root`/sys; a root other than the empty one is for tests.
std::vector<TaskLimit> ReadTaskLimits(const std::string& root = "");

// RESOURCE_EXHAUSTED, with the name of the limit, its value, what is needed and how it is raised, where `needed` more
// processes and threads are more than are left of one.
absl::Status CheckTaskLimits(int64_t needed, const std::vector<TaskLimit>& limits);

}  // namespace tessera::base
