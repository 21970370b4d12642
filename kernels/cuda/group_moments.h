// Mean of each group of channels of an image, and the sum of the squared differences from it, on a GPU. A first kernel
// takes slices of each group, a second merges them in their order; how many there are depends on the shape alone, so
// that an image's moments are the same whatever else is in the batch.
#pragma once

#include "kernels/cuda/launch.h"

namespace tessera::kernels::cuda {

struct GroupMomentsArguments {
  Number number = Number::kFloat;
  ConstPlanes x;
  int64_t groups = 0;             // of equally many channels
  double* slice_means = nullptr;  // [images, groups, MomentSlices]
  double* slice_squares = nullptr;
  double* means = nullptr;  // [images, groups]
  double* squares = nullptr;
};

// Numbers that one block takes.
inline constexpr int64_t kMomentSlice = 32768;

inline int64_t MomentSlices(const ConstPlanes& x, int64_t groups) {
  return (x.channels / groups * x.plane + kMomentSlice - 1) / kMomentSlice;
}

// cudaErrorInvalidValue: there are more slices than blocks in a grid. Without numbers nothing is launched.
cudaError_t LaunchGroupMoments(const GroupMomentsArguments& arguments, cudaStream_t stream);

}  // namespace tessera::kernels::cuda
