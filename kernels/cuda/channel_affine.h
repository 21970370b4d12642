// x · factor + offset of each channel of an image, and SiLU of it, on a GPU: what a group norm of the autoencoder comes
// to once its moments are known.
#pragma once

#include "kernels/cuda/launch.h"

namespace tessera::kernels::cuda {

struct ChannelAffineArguments {
  Number number = Number::kFloat;
  ConstPlanes x;
  const void* factor = nullptr;  // [images, channels], dense, in fp32, for fp64 in fp64
  const void* offset = nullptr;
  bool silu = false;
  void* y = nullptr;  // dense
};

// The same of an image with its channels last.
struct PixelAffineArguments {
  Number number = Number::kFloat;
  ConstPixels x;
  const void* factor = nullptr;
  const void* offset = nullptr;
  bool silu = false;
  void* y = nullptr;  // dense, its channels last too
};

// cudaErrorInvalidValue: planes are larger than a grid is. Without numbers nothing is launched.
cudaError_t LaunchChannelAffine(const ChannelAffineArguments& arguments, cudaStream_t stream);
cudaError_t LaunchChannelAffine(const PixelAffineArguments& arguments, cudaStream_t stream);

}  // namespace tessera::kernels::cuda
