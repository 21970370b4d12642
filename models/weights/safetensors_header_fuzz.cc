// Parses arbitrary bytes as a safetensors file: every accepted header must satisfy the checks.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "models/weights/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view file(reinterpret_cast<const char*>(data), size);
  // The first byte lengthens the file, so that short inputs can describe large tensors.
  const uint64_t file_size = size == 0 ? 0 : size - 1 + (uint64_t{1} << (data[0] % 64)) - 1;
  const std::string_view bytes = size == 0 ? file : file.substr(1);
  const auto length = tessera::models::ParseSafetensorsHeaderLength(bytes.substr(0, 8), file_size, "fuzz");
  if (!length.ok() || *length > bytes.size() - 8) return 0;
  const auto header = tessera::models::ParseSafetensorsHeader(bytes.substr(8, *length), file_size, "fuzz");
  if (!header.ok()) return 0;
  uint64_t covered = 8 + *length;
  for (const tessera::models::StoredTensor& tensor : header->tensors) {
    if (tensor.begin != covered || tensor.end < tensor.begin) std::abort();
    covered = tensor.end;
    uint64_t elements = 1;
    for (int64_t dim : tensor.shape) elements *= static_cast<uint64_t>(dim);
    if (elements != static_cast<uint64_t>(tensor.elements())) std::abort();
  }
  if (covered != file_size) std::abort();
  return 0;
}
