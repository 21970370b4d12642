// Measures the resources of a process under test, as shown in /proc.
#pragma once

#include <sys/types.h>

#include <optional>

namespace tessera {

struct Holdings {
  double resident_mib = 0;
  double descriptors = 0;
  double threads = 0;
  double segments = 0;  // mapped shared memory segments
};

// Returns no value if the process has ended.
std::optional<Holdings> HoldingsOf(pid_t pid);

}  // namespace tessera
