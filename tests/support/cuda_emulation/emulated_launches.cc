// Implements the launch functions of kernels/cuda on the host, so that their operators run on CPU tensors.
#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/channel_affine.cuh"
#include "kernels/cuda/group_moments.cuh"
#include "kernels/cuda/heads.cuh"
#include "kernels/cuda/merge.cuh"
#include "kernels/cuda/on_device.h"
#include "kernels/cuda/quantize_rows.cuh"
#include "kernels/cuda/residual_norm.cuh"
#include "kernels/cuda/weighted_sums.cuh"
#include "kernels/cuda/widen.cuh"
#include "tests/support/cuda_emulation/kernel_runs.h"

namespace tessera::kernels::cuda {

const EmulatedLauncher kLauncher(cuda_emulation::Order::kAscending);

cudaError_t LaunchActivation(const ActivationArguments& a, cudaStream_t) { return RunActivation(a, kLauncher); }
cudaError_t LaunchChannelAffine(const ChannelAffineArguments& a, cudaStream_t) {
  return RunChannelAffine(a, kLauncher);
}
cudaError_t LaunchChannelAffine(const PixelAffineArguments& a, cudaStream_t) { return RunChannelAffine(a, kLauncher); }
cudaError_t LaunchGroupMoments(const GroupMomentsArguments& a, cudaStream_t) { return RunGroupMoments(a, kLauncher); }
cudaError_t LaunchGroupMoments(const PixelMomentsArguments& a, cudaStream_t) { return RunGroupMoments(a, kLauncher); }
cudaError_t LaunchHeads(const HeadsArguments& a, cudaStream_t) { return RunHeads(a, kLauncher); }
cudaError_t LaunchMerge(const MergeArguments& a, cudaStream_t) { return RunMerge(a, kLauncher); }
cudaError_t LaunchQuantizeRows(const QuantizeRowsArguments& a, cudaStream_t) { return RunQuantizeRows(a, kLauncher); }
cudaError_t LaunchResidualNorm(const ResidualNormArguments& a, cudaStream_t) { return RunResidualNorm(a, kLauncher); }
cudaError_t LaunchWeightedSums(const WeightedSumsArguments& a, cudaStream_t) { return RunWeightedSums(a, kLauncher); }
cudaError_t LaunchWiden(const WidenArguments& a, cudaStream_t) { return RunWiden(a, kLauncher); }

void OnDeviceOf(const at::Tensor&, const char* name, c10::function_ref<cudaError_t(cudaStream_t)> launch) {
  TORCH_CHECK(launch(nullptr) == cudaSuccess, name, ": the kernel could not be launched");
}

}  // namespace tessera::kernels::cuda
