// WeightStorage says how the weights of matrix products are kept in memory. LibTorch-free.
#pragma once

#include <array>

#include "base/fields/enum_names.h"

namespace tessera::control {

// How the weights of matrix products are kept in memory.
enum class WeightStorage {
  kStored,  // as the model's files have them: quantized weights stay quantized
  kBf16,    // plain, in bf16
  kFp8,     // e4m3 with a scale for each row
  kInt8,    // with a scale for each row
  kQ8_0,    // eight bits with a scale for 32 values, as in GGUF files
};
constexpr auto NamesOf(WeightStorage) { return std::array{"stored", "bf16", "fp8", "int8", "q8_0"}; }

// Whether weights are quantized while they are loaded.
constexpr bool IsQuantizing(WeightStorage storage) {
  return storage != WeightStorage::kStored && storage != WeightStorage::kBf16;
}

}  // namespace tessera::control
