#include "kernels/cuda/on_device.h"

#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

namespace tessera::kernels::cuda {

void OnDeviceOf(const at::Tensor& x, const char* name, c10::function_ref<cudaError_t(cudaStream_t)> launch) {
  const c10::cuda::CUDAGuard device(x.device());
  const cudaError_t error = launch(c10::cuda::getCurrentCUDAStream().stream());
  TORCH_CHECK(error == cudaSuccess, name, ": the kernel could not be launched: ", cudaGetErrorString(error));
}

}  // namespace tessera::kernels::cuda
