#include "kernels/cuda/merge.cuh"
#include "kernels/cuda/stream_launcher.cuh"

namespace tessera::kernels::cuda {

cudaError_t LaunchMerge(const MergeArguments& arguments, cudaStream_t stream) {
  return RunMerge(arguments, StreamLauncher(stream));
}

}  // namespace tessera::kernels::cuda
