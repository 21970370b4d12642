// Parses arbitrary bytes as the index of a checkpoint: an accepted index has boxes within their tensors and valid
// ranks, and is unchanged when it is written and read again.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "runtime/training/checkpoints/checkpoint_index.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tessera::runtime;
  const auto index = ParseIndex({reinterpret_cast<const char*>(data), size}, "fuzz");
  if (!index.ok()) return 0;
  for (const auto& [name, tensor] : index->tensors) {
    for (const StoredBox& stored : tensor.boxes) {
      if (!LiesWithin(stored.box, tensor.shape) || stored.rank < 0 || stored.rank >= index->ranks) std::abort();
    }
  }
  CheckCoverage(*index).IgnoreError();
  const auto again = ParseIndex(IndexJson(*index), "fuzz");
  if (!again.ok() || *again != *index) std::abort();
  return 0;
}
