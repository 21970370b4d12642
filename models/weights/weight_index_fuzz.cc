// Parses arbitrary bytes as the index of a sharded checkpoint: every accepted file must be within its folder.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "models/weights/weight_folder.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto index = tessera::models::ParseWeightIndex({reinterpret_cast<const char*>(data), size}, "fuzz");
  if (!index.ok()) return 0;
  for (const auto& [tensor, file] : *index) {
    if (file.find('/') != file.npos || file.find('\0') != file.npos || !file.ends_with(".safetensors")) std::abort();
  }
  return 0;
}
