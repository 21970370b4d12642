// Parses arbitrary bytes as a GGUF file: every accepted header must satisfy the checks, and its blocks can be widened.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "kernels/quantized/quant_rows.h"
#include "models/weights/gguf.h"
#include "models/weights/stored_types.h"

namespace {

void WidenRow(const tessera::models::StoredTensor& tensor, std::string_view file) {
  const auto type = tessera::models::QuantTypeOf(tensor.type);
  if (!type || tensor.shape.empty() || tensor.elements() == 0 || tensor.end > file.size()) return;
  const int64_t columns = tensor.shape.back();
  if (columns > 4096) return;
  const tessera::kernels::QuantRows rows{.type = *type,
                                         .bytes = reinterpret_cast<const std::byte*>(file.data() + tensor.begin),
                                         .row_bytes = tessera::kernels::RowBytes(*type, columns),
                                         .columns = columns};
  const int64_t count = tensor.elements() / columns;
  std::vector<float> row(static_cast<size_t>(columns));
  tessera::kernels::ReferenceWiden(tessera::kernels::RunOf(rows, count - 1, 0, columns), row.data());
  tessera::kernels::AllFinite(rows, count);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  // The first byte lengthens the file, so that short inputs can describe large tensors.
  const uint64_t file_size = bytes.size() + (uint64_t{1} << (data[0] % 63)) - 1;
  const auto header = tessera::models::ParseGgufHeader(bytes, file_size, "fuzz");
  if (!header.ok()) return 0;
  uint64_t covered = header->bytes;
  for (const tessera::models::StoredTensor& tensor : header->tensors) {
    if (tensor.begin < covered || tensor.end < tensor.begin || tensor.end > file_size) std::abort();
    covered = std::max(covered, tensor.end);
    uint64_t elements = 1;
    for (const int64_t dim : tensor.shape) elements *= static_cast<uint64_t>(dim);
    if (elements != static_cast<uint64_t>(tensor.elements())) std::abort();
    WidenRow(tensor, bytes);
  }
  return 0;
}
