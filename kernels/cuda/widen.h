// Widens rows of a quantized weight on a GPU.
#pragma once

#include "kernels/cuda/launch.h"
#include "kernels/quantized/quant_type.h"

namespace tessera::kernels::cuda {

struct WidenArguments {
  QuantType type = QuantType::kInt8;
  Number number = Number::kBf16;
  int64_t rows = 0, columns = 0;
  const uint8_t* bytes = nullptr;  // of the first row
  int64_t row_bytes = 0;           // between rows
  const float* scales = nullptr;   // as in QuantRows
  int64_t scale_block = 0;
  const float* table = nullptr;
  void* to = nullptr;  // dense [rows, columns]
};

// Writes the values of the form's definition, rounded once. Returns cudaErrorInvalidValue if the rows are too many for
// a grid. Launches nothing if there are no values.
cudaError_t LaunchWiden(const WidenArguments& arguments, cudaStream_t stream);

}  // namespace tessera::kernels::cuda
