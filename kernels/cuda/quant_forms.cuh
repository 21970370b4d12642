// The definition of quantized numbers (kernels/quantized/quant_forms.inc) for kernels.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/macros/planted.h"
#include "kernels/quantized/quant_type.h"

namespace tessera::kernels::cuda {
namespace {

#define QUANT_FUNCTION __device__ inline
#include "kernels/quantized/quant_forms.inc"
#undef QUANT_FUNCTION

}  // namespace
}  // namespace tessera::kernels::cuda
