// A kernel that proves that this library has code for a GPU and that the GPU runs it.
#pragma once

#include <cuda_runtime_api.h>

namespace tessera::kernels {

// Runs the kernel on the device, which becomes current. Returns cudaErrorNoKernelImageForDevice if this library has no
// code for that GPU.
cudaError_t RunProbe(int device);

}  // namespace tessera::kernels
