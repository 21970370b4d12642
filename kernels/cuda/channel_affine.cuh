// The kernels of channel_affine.h: one thread per chunk of a plane, or of the channels of a pixel.
#pragma once

#include "kernels/cuda/channel_affine.h"
#include "kernels/cuda/number.cuh"
#include "kernels/cuda/reduce.cuh"

namespace tessera::kernels::cuda {

constexpr int kChannelAffineThreads = 256;

template <typename W>
__device__ inline W AffineOf(W x, W factor, W offset, bool silu) {
  const W y = x * factor + offset;
  return silu ? y / (W(1) + exp(-y)) : y;
}

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
  for (int i = 0; i < kChunk<T>; ++i) x[i] = AffineOf(x[i], factor, offset, a.silu);
  StoreNumbers<kAligned>(static_cast<T*>(a.y) + row * a.x.plane, first, a.x.plane, x);
}

// The grid's x dimension covers the chunks of one image, y the images.
template <typename T, bool kAligned>
__global__ void __launch_bounds__(kChannelAffineThreads) PixelAffine(const PixelAffineArguments a) {
  using W = WideOf<T>;
  const unsigned chunks = static_cast<unsigned>((a.x.channels + kChunk<T> - 1) / kChunk<T>);  // per pixel
  const unsigned number = blockIdx.x * blockDim.x + threadIdx.x, pixel = number / chunks;
  if (pixel >= a.x.pixels) return;
  const int64_t image = blockIdx.y, first = static_cast<int64_t>(number % chunks) * kChunk<T>;
  const T* from = static_cast<const T*>(a.x.data) + image * a.x.image_stride + pixel * a.x.pixel_stride;
  const W* factors = static_cast<const W*>(a.factor) + image * a.x.channels;
  const W* offsets = static_cast<const W*>(a.offset) + image * a.x.channels;
  W x[kChunk<T>];
  LoadNumbers<kAligned>(from, first, a.x.channels, x);
#pragma unroll
  for (int i = 0; i < kChunk<T>; ++i) {
    if (kAligned || first + i < a.x.channels) {
      x[i] = AffineOf(x[i], factors[first + i], offsets[first + i], a.silu);
    }
  }
  StoreNumbers<kAligned>(static_cast<T*>(a.y) + (image * a.x.pixels + pixel) * a.x.channels, first, a.x.channels, x);
}

// Returns whether every pixel begins and ends at a multiple of a chunk.
inline bool PixelsAreAligned(const ConstPixels& x, int64_t chunk) {
  return IsAligned(x.data) && x.image_stride % chunk == 0 && x.pixel_stride % chunk == 0 && x.channels % chunk == 0;
}

// Returns whether every plane begins and ends at a multiple of a chunk.
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

template <typename Launcher>
cudaError_t RunChannelAffine(const PixelAffineArguments& a, const Launcher& launch) {
  if (a.x.images == 0 || a.x.pixels == 0 || a.x.channels == 0) return cudaSuccess;
  return VisitNumber(a.number, [&](auto number) {
    using T = typename decltype(number)::Type;
    const int64_t chunks = a.x.pixels * ((a.x.channels + kChunk<T> - 1) / kChunk<T>);
    constexpr int64_t kMostImages = 65535;
    if (chunks > INT32_MAX || a.x.images > kMostImages) return cudaErrorInvalidValue;
    const int64_t threads = std::min<int64_t>((chunks + kWarp - 1) / kWarp * kWarp, kChannelAffineThreads);
    const LaunchShape shape{.blocks = static_cast<unsigned>((chunks + threads - 1) / threads),
                            .blocks_y = static_cast<unsigned>(a.x.images),
                            .threads = static_cast<unsigned>(threads),
                            .shared_bytes = 0};
    const bool aligned = PixelsAreAligned(a.x, kChunk<T>) && IsAligned(a.y);
    return launch(aligned ? PixelAffine<T, true> : PixelAffine<T, false>, shape, a);
  });
}

}  // namespace tessera::kernels::cuda
