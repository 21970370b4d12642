// Confines the calling process, which must have one thread, to computing on what it reads from descriptor 0 and writing
// to descriptor 1. There is no way back. Linux only, on x86-64 and AArch64.
#pragma once

#include <cstdint>

#include "absl/status/status.h"

namespace tessera::server {

struct ConfinementLimits {
  uint64_t memory_bytes = 0;  // of address space
  uint64_t processor_seconds = 0;
};

// Sets limits (memory, processor time; no new descriptors, files, locked memory, processes or core dumps), takes all
// privileges and installs system call filters that kill the process for everything that decoding does not need. Between
// the filters it attempts to open a file, make a socket and start a process, and each must fail.
// FAILED_PRECONDITION names the step that the system does not allow, or that had no effect; the process must then end
// without reading a byte from outside.
[[nodiscard]] absl::Status ConfineThisProcess(const ConfinementLimits& limits);

}  // namespace tessera::server
