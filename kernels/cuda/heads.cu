#include "kernels/cuda/heads.cuh"
#include "kernels/cuda/stream_launcher.cuh"

namespace tessera::kernels::cuda {

cudaError_t LaunchHeads(const HeadsArguments& arguments, cudaStream_t stream) {
  return RunHeads(arguments, StreamLauncher(stream));
}

}  // namespace tessera::kernels::cuda
