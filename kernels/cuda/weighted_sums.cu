#include "kernels/cuda/stream_launcher.cuh"
#include "kernels/cuda/weighted_sums.cuh"

namespace tessera::kernels::cuda {

cudaError_t LaunchWeightedSums(const WeightedSumsArguments& arguments, cudaStream_t stream) {
  return RunWeightedSums(arguments, StreamLauncher(stream));
}

}  // namespace tessera::kernels::cuda
