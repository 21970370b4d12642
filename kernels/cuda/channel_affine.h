// Computes x · factor + offset for each channel of an image, optionally followed by SiLU, on a GPU. This is a group
// norm of the autoencoder once its moments are known.
#pragma once

#include "kernels/cuda/launch.h"

namespace tessera::kernels::cuda {

struct ChannelAffineArguments {
  Number number = Number::kFloat;
  ConstPlanes x;
  const void* factor = nullptr;  // [images, channels], dense, in max(fp32, number)
  const void* offset = nullptr;
  bool silu = false;
  void* y = nullptr;  // dense
};

// The same operation on an image with its channels last.
struct PixelAffineArguments {
  Number number = Number::kFloat;
  ConstPixels x;
  const void* factor = nullptr;
  const void* offset = nullptr;
  bool silu = false;
  void* y = nullptr;  // dense, channels last
};

// Returns cudaErrorInvalidValue if the planes are too large for a grid. Launches nothing if there are no numbers.
cudaError_t LaunchChannelAffine(const ChannelAffineArguments& arguments, cudaStream_t stream);
cudaError_t LaunchChannelAffine(const PixelAffineArguments& arguments, cudaStream_t stream);

}  // namespace tessera::kernels::cuda
