// How an operator reaches the GPU that its tensors are on.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include "kernels/cuda/launch.h"

namespace tessera::kernels::cuda {

// Calls `launch` with the current stream of x's device, which is the current device meanwhile. Ends in an exception
// that names the operator where it fails.
void OnDeviceOf(const at::Tensor& x, const char* name, c10::function_ref<cudaError_t(cudaStream_t)> launch);

}  // namespace tessera::kernels::cuda
