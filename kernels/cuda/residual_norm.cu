#include "kernels/cuda/residual_norm.cuh"
#include "kernels/cuda/stream_launcher.cuh"

namespace tessera::kernels::cuda {

cudaError_t LaunchResidualNorm(const ResidualNormArguments& arguments, cudaStream_t stream) {
  return RunResidualNorm(arguments, StreamLauncher(stream));
}

}  // namespace tessera::kernels::cuda
