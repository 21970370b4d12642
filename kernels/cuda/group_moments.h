// Computes the mean of each group of channels of an image and the sum of squared differences from it, on a GPU. A first
// kernel processes slices of each group; a second merges the slices in order. The number of slices depends on the shape
// alone, so that an image's moments do not depend on the rest of the batch.
#pragma once

#include "kernels/cuda/launch.h"

namespace tessera::kernels::cuda {

struct GroupMomentsArguments {
  Number number = Number::kFloat;
  ConstPlanes x;
  int64_t groups = 0;             // groups have equally many channels
  double* slice_means = nullptr;  // [images, groups, MomentSlices]
  double* slice_squares = nullptr;
  double* means = nullptr;  // [images, groups]
  double* squares = nullptr;
};

// Numbers per block.
inline constexpr int64_t kMomentSlice = 32768;

inline int64_t MomentSlices(const ConstPlanes& x, int64_t groups) {
  return (x.channels / groups * x.plane + kMomentSlice - 1) / kMomentSlice;
}

// The same operation on an image with its channels last. A slice is a range of pixels with all their channels.
struct PixelMomentsArguments {
  Number number = Number::kFloat;
  ConstPixels x;             // with at most kMostMomentChannels
  int64_t slice_pixels = 0;  // MomentPixels; set by LaunchGroupMoments
  int64_t groups = 0;
  double* slice_means = nullptr;  // [images, groups, PixelMomentSlices]
  double* slice_squares = nullptr;
  double* means = nullptr;  // [images, groups]
  double* squares = nullptr;
};

inline constexpr int64_t kMostMomentChannels = 512;

// Pixels per block.
inline int64_t MomentPixels(const ConstPixels& x) {
  constexpr int64_t kNumbers = 65536, kFewest = 64;
  return x.channels == 0 || kNumbers / x.channels < kFewest ? kFewest : kNumbers / x.channels;
}

inline int64_t PixelMomentSlices(const ConstPixels& x) { return (x.pixels + MomentPixels(x) - 1) / MomentPixels(x); }

// Returns cudaErrorInvalidValue if there are more slices than a grid has blocks, or more channels than a block can
// process. Launches nothing if there are no numbers.
cudaError_t LaunchGroupMoments(const GroupMomentsArguments& arguments, cudaStream_t stream);
cudaError_t LaunchGroupMoments(const PixelMomentsArguments& arguments, cudaStream_t stream);

}  // namespace tessera::kernels::cuda
