// QuantWeight is the weight of a product in a quantized form, as tensors.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <optional>

#include "kernels/quantized/quant_rows.h"

namespace tessera::kernels {

struct QuantWeight {
  QuantType type = QuantType::kInt8;
  at::Tensor values;        // [out, RowBytes(type, in)] in bytes (uint8 or int8); the bytes of a row are adjacent
  at::Tensor scales;        // fp32, dense: [out, 1]; kNibble: [out, in / scale_block]; GGUF forms: undefined
  at::Tensor table;         // kNibble: fp32 [16]; else undefined
  int64_t in = 0;           // columns; whole blocks
  int64_t scale_block = 0;  // kNibble: the values for one scale

  int64_t out() const { return values.size(0); }
};

// Throws c10::Error, naming `what`, unless the tensors fit the form and each other.
void CheckQuantWeight(const QuantWeight& weight, const char* what);

// Returns a view of a weight, in the memory of its device.
inline QuantRows RowsOf(const QuantWeight& weight) {
  return {.type = weight.type,
          .bytes = static_cast<const std::byte*>(weight.values.const_data_ptr()),
          .row_bytes = weight.values.stride(0),
          .columns = weight.in,
          .scales = weight.scales.defined() ? weight.scales.const_data_ptr<float>() : nullptr,
          .scale_block = weight.scale_block,
          .table = weight.table.defined() ? weight.table.const_data_ptr<float>() : nullptr};
}

// The weight as the dispatcher passes it.
inline QuantWeight QuantWeightOf(const at::Tensor& values, const std::optional<at::Tensor>& scales,
                                 const std::optional<at::Tensor>& table, int64_t type, int64_t in,
                                 int64_t scale_block) {
  return {.type = static_cast<QuantType>(type),
          .values = values,
          .scales = scales.value_or(at::Tensor()),
          .table = table.value_or(at::Tensor()),
          .in = in,
          .scale_block = scale_block};
}

}  // namespace tessera::kernels
