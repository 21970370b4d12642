// Quantizes rows of activations to e4m3 on a GPU: the rows as they are, or an activation function of them.
#pragma once

#include <cstdint>

#include "kernels/cuda/activation.h"
#include "kernels/cuda/launch.h"

namespace tessera::kernels::cuda {

struct QuantizeRowsArguments {
  Number number = Number::kBf16;
  int64_t rows = 0, columns = 0;
  const void* from = nullptr;  // [rows, columns]
  int64_t row_stride = 0;      // in numbers; the columns of a row are adjacent
  // The rows are activated, multiplied by `gate` if there is one, and rounded before they are quantized.
  bool activates = false;
  Activation activation = Activation::kGeluTanh;
  const void* gate = nullptr;  // like `from`
  int64_t gate_stride = 0;
  uint8_t* codes = nullptr;  // dense [rows, columns]
  float* scales = nullptr;   // [rows]
};

// Gives the codes and scales that ReferenceQuantizeActivations (kernels/quantized/quant_rows.h) defines, bit for bit.
// Returns cudaErrorInvalidValue if the rows are too many for a grid. Launches nothing if there are no values.
cudaError_t LaunchQuantizeRows(const QuantizeRowsArguments& arguments, cudaStream_t stream);

}  // namespace tessera::kernels::cuda
