#include "models/loading/weight_memory.h"

#include <malloc.h>

#include <limits>

namespace tessera::models {
namespace {

constexpr int kKeptBytes = 1 << 30;    // larger allocations are mapped
constexpr int kWeightBytes = 1 << 17;  // glibc's initial threshold

}  // namespace

void KeepFreedMemory() {
  mallopt(M_MMAP_THRESHOLD, kKeptBytes);
  mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
}

WeightPages::WeightPages() { mallopt(M_MMAP_THRESHOLD, kWeightBytes); }

WeightPages::~WeightPages() { KeepFreedMemory(); }

}  // namespace tessera::models
