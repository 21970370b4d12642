#include "kernels/cuda/group_moments.cuh"
#include "kernels/cuda/stream_launcher.cuh"

namespace tessera::kernels::cuda {

cudaError_t LaunchGroupMoments(const GroupMomentsArguments& arguments, cudaStream_t stream) {
  return RunGroupMoments(arguments, StreamLauncher(stream));
}

cudaError_t LaunchGroupMoments(const PixelMomentsArguments& arguments, cudaStream_t stream) {
  return RunGroupMoments(arguments, StreamLauncher(stream));
}

}  // namespace tessera::kernels::cuda
