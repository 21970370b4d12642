// The kernel of channel_affine.h: a thread for each chunk of a plane.
#pragma once

#include "kernels/cuda/channel_affine.h"
#include "kernels/cuda/number.cuh"
#include "kernels/cuda/reduce.cuh"

namespace tessera::kernels::cuda {

constexpr int kChannelAffineThreads = 256;

template <typename T, bool kAligned>
__global__ void __launch_bounds__(kChannelAffineThreads) ChannelAffine(const ChannelAffineArguments a) {
  using W = WideOf<T>;
  const int64_t row = blockIdx.x, image = row / a.x.channels, channel = row % a.x.channels;
  const int64_t first = (static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * kChunk<T>;
  const T* from = static_cast<const T*>(a.x.data) + image * a.x.image_stride + channel * a.x.channel_stride;
  const W factor = static_cast<const W*>(a.factor)[row], offset = static_cast<const W*>(a.offset)[row];
  W x[kChunk<T>];
  LoadNumbers<kAligned>(from, first, a.x.plane, x);
#pragma unroll
  for (int i = 0; i < kChunk<T>; ++i) {
    x[i] = x[i] * factor + offset;
    if (a.silu) x[i] = x[i] / (W(1) + exp(-x[i]));
  }
  StoreNumbers<kAligned>(static_cast<T*>(a.y) + row * a.x.plane, first, a.x.plane, x);
}

// Whether every plane begins at a multiple of a chunk and ends at one.
inline bool PlanesAreAligned(const ConstPlanes& x, int64_t chunk) {
  return IsAligned(x.data) && x.image_stride % chunk == 0 && x.channel_stride % chunk == 0 && x.plane % chunk == 0;
}

template <typename Launcher>
cudaError_t RunChannelAffine(const ChannelAffineArguments& a, const Launcher& launch) {
  const int64_t rows = a.x.images * a.x.channels;
  if (rows == 0 || a.x.plane == 0) return cudaSuccess;
  return VisitNumber(a.number, [&](auto number) {
    using T = typename decltype(number)::Type;
    constexpr int64_t kOfBlock = int64_t{kChannelAffineThreads} * kChunk<T>, kMostBlocks = 65535;
    if (rows > INT32_MAX || a.x.plane > kMostBlocks * kOfBlock) return cudaErrorInvalidValue;
    const int64_t chunks = (a.x.plane + kChunk<T> - 1) / kChunk<T>;
    const int64_t threads = std::min<int64_t>((chunks + kWarp - 1) / kWarp * kWarp, kChannelAffineThreads);
    const LaunchShape shape{.blocks = static_cast<unsigned>(rows),
                            .blocks_y = static_cast<unsigned>((chunks + threads - 1) / threads),
                            .threads = static_cast<unsigned>(threads),
                            .shared_bytes = 0};
    const bool aligned = PlanesAreAligned(a.x, kChunk<T>) && IsAligned(a.y);
    return launch(aligned ? ChannelAffine<T, true> : ChannelAffine<T, false>, shape, a);
  });
}

}  // namespace tessera::kernels::cuda
