// Describes weights that wait in pageable main memory because the system refuses to pin more of it, as WSL does. Pure;
// free of LibTorch.
#pragma once

#include <cstdint>
#include <string>

#include "control/model/memory_fit.h"

namespace tessera::control {

struct PageableWeights {
  int64_t bytes = 0;            // of pageable memory in which weights wait
  int64_t waiting_bytes = 0;    // of all memory in which weights wait
  double bytes_per_second = 0;  // of copies from pageable memory; 0: unknown
};

// Returns the fit with the time of its copies if as much as possible of what is copied in a step is in the pageable
// memory. `fit` has the time of copies from pinned memory.
MemoryFit WithPageable(MemoryFit fit, const PageableWeights& weights);

// Returns "3.00 GiB of the 9.00 GiB in which weights wait are pageable …", with the time of a step of WithPageable if
// it is known and blocks are copied.
std::string PageableText(const MemoryFit& fit, const PageableWeights& weights);

}  // namespace tessera::control
