#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/stream_launcher.cuh"

namespace tessera::kernels::cuda {

cudaError_t LaunchActivation(const ActivationArguments& arguments, cudaStream_t stream) {
  return RunActivation(arguments, StreamLauncher(stream));
}

}  // namespace tessera::kernels::cuda
