#include "kernels/cuda/channel_affine.cuh"
#include "kernels/cuda/stream_launcher.cuh"

namespace tessera::kernels::cuda {

cudaError_t LaunchChannelAffine(const ChannelAffineArguments& arguments, cudaStream_t stream) {
  return RunChannelAffine(arguments, StreamLauncher(stream));
}

cudaError_t LaunchChannelAffine(const PixelAffineArguments& arguments, cudaStream_t stream) {
  return RunChannelAffine(arguments, StreamLauncher(stream));
}

}  // namespace tessera::kernels::cuda
