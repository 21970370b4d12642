#include "kernels/cuda/stream_launcher.cuh"
#include "kernels/cuda/widen.cuh"

namespace tessera::kernels::cuda {

cudaError_t LaunchWiden(const WidenArguments& arguments, cudaStream_t stream) {
  return RunWiden(arguments, StreamLauncher(stream));
}

}  // namespace tessera::kernels::cuda
