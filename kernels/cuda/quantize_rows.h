// Quantizes rows of activations to e4m3 on a GPU.
#pragma once

#include "kernels/cuda/launch.h"

namespace tessera::kernels::cuda {

struct QuantizeRowsArguments {
  Number number = Number::kBf16;
  int64_t rows = 0, columns = 0;
  const void* from = nullptr;  // dense [rows, columns]
  uint8_t* codes = nullptr;    // dense [rows, columns]
  float* scales = nullptr;     // [rows]
};

// Gives the codes and scales that ReferenceQuantizeActivations (kernels/quantized/quant_rows.h) defines, bit for bit.
// Returns cudaErrorInvalidValue if the rows are too many for a grid. Launches nothing if there are no values.
cudaError_t LaunchQuantizeRows(const QuantizeRowsArguments& arguments, cudaStream_t stream);

}  // namespace tessera::kernels::cuda
