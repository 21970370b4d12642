// What a process under test holds of the machine, as /proc tells.
#pragma once

#include <sys/types.h>

#include <optional>

namespace tessera {

struct Holdings {
  double resident_mib = 0;
  double descriptors = 0;
  double threads = 0;
  double segments = 0;  // of shared memory, mapped
};

// Nothing once the process has gone.
std::optional<Holdings> HoldingsOf(pid_t pid);

}  // namespace tessera
