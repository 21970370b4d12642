// Runs an operator's kernel on the GPU that holds its tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include "kernels/cuda/launch.h"

namespace tessera::kernels::cuda {

// Calls `launch` with the current stream of x's device, which is the current device during the call. Throws c10::Error
// with the operator's name if `launch` fails.
void OnDeviceOf(const at::Tensor& x, const char* name, c10::function_ref<cudaError_t(cudaStream_t)> launch);

}  // namespace tessera::kernels::cuda
