// The kernels of group_moments.h.
#pragma once

#include "kernels/cuda/channel_affine.cuh"
#include "kernels/cuda/group_moments.h"
#include "kernels/cuda/number.cuh"
#include "kernels/cuda/reduce.cuh"

namespace tessera::kernels::cuda {

constexpr int kMomentThreads = 256;

// Of `count` numbers: their mean, and the sum of the squared differences from it.
template <typename W>
struct Moments {
  W count = 0, mean = 0, squares = 0;

  // Those of both (Chan, Golub and LeVeque, 1979).
  __device__ void Add(const Moments& other) {
    if (other.count == W(0)) return;
    const W whole = count + other.count, difference = other.mean - mean, part = other.count / whole;
    mean += difference * part;
    squares += other.squares + difference * difference * count * part;
    count = whole;
  }
};

// Those of the whole block, in the first thread; `warps`, in shared memory, has a place for each warp.
__device__ inline Moments<double> BlockMoments(Moments<double> own, Moments<double>* warps) {
  for (int distance = static_cast<int>(kWarp) / 2; distance > 0; distance /= 2) {
    Moments<double> other;
    other.count = __shfl_down_sync(kWholeWarp, own.count, distance);
    other.mean = __shfl_down_sync(kWholeWarp, own.mean, distance);
    other.squares = __shfl_down_sync(kWholeWarp, own.squares, distance);
    if (static_cast<int>(threadIdx.x % kWarp) < distance) own.Add(other);
  }
  if (threadIdx.x % kWarp == 0) warps[threadIdx.x / kWarp] = own;
  if (!base::Planted("kernel_missing_barrier")) __syncthreads();
  if (threadIdx.x == 0) {
    for (unsigned warp = 1; warp < blockDim.x / kWarp; ++warp) own.Add(warps[warp]);
  }
  return own;
}

template <typename T, bool kAligned>
__global__ void __launch_bounds__(kMomentThreads) SliceMoments(const GroupMomentsArguments a) {
  using W = WideOf<T>;
  const int64_t row = blockIdx.x, image = row / a.groups, group = row % a.groups;
  const int64_t channels = a.x.channels / a.groups, numbers = channels * a.x.plane;
  const int64_t begin = blockIdx.y * kMomentSlice;
  const int64_t end = begin + kMomentSlice < numbers ? begin + kMomentSlice : numbers;
  const T* from = static_cast<const T*>(a.x.data) + image * a.x.image_stride + group * channels * a.x.channel_stride;
  Moments<W> own;
  for (int64_t at = begin + threadIdx.x * kChunk<T>; at < end; at += kMomentThreads * kChunk<T>) {
    W x[kChunk<T>];
    Moments<W> chunk;
    if constexpr (kAligned) {  // planes are whole chunks
      LoadNumbers<true>(from + at / a.x.plane * a.x.channel_stride, at % a.x.plane, a.x.plane, x);
    } else {
#pragma unroll
      for (int i = 0; i < kChunk<T>; ++i) {
        const int64_t number = at + i;
        x[i] = number < end ? Widen(from[number / a.x.plane * a.x.channel_stride + number % a.x.plane]) : W(0);
      }
    }
    const int64_t left = end - at;
    chunk.count = static_cast<W>(left < kChunk<T> ? left : kChunk<T>);
#pragma unroll
    for (int i = 0; i < kChunk<T>; ++i) chunk.mean += x[i];
    chunk.mean /= chunk.count;
#pragma unroll
    for (int i = 0; i < kChunk<T>; ++i) {
      const W difference = i < left ? x[i] - chunk.mean : W(0);
      chunk.squares += difference * difference;
    }
    own.Add(chunk);
  }
  Moments<double> wide;
  wide.count = own.count;
  wide.mean = own.mean;
  wide.squares = own.squares;
  wide = BlockMoments(wide, SharedMemory<Moments<double>>());
  if (threadIdx.x != 0) return;
  a.slice_means[row * gridDim.y + blockIdx.y] = wide.mean;
  a.slice_squares[row * gridDim.y + blockIdx.y] = wide.squares;
}

// One thread a group; a template so that more than one file may include it.
template <typename Arguments>
__global__ void __launch_bounds__(kWarp) MergeSlices(const Arguments a) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kWarp + threadIdx.x;
  if (row >= a.x.images * a.groups) return;
  const int64_t numbers = a.x.channels / a.groups * a.x.plane, slices = (numbers + kMomentSlice - 1) / kMomentSlice;
  Moments<double> whole;
  for (int64_t slice = 0; slice < slices; ++slice) {
    const int64_t left = numbers - slice * kMomentSlice;
    Moments<double> moments;
    moments.count = static_cast<double>(left < kMomentSlice ? left : kMomentSlice);
    moments.mean = a.slice_means[row * slices + slice];
    moments.squares = a.slice_squares[row * slices + slice];
    whole.Add(moments);
  }
  a.means[row] = whole.mean;
  a.squares[row] = whole.squares;
}

template <typename Launcher>
cudaError_t RunGroupMoments(const GroupMomentsArguments& a, const Launcher& launch) {
  const int64_t rows = a.x.images * a.groups;
  if (rows == 0 || a.x.channels * a.x.plane == 0) return cudaSuccess;
  const int64_t slices = MomentSlices(a.x, a.groups);
  constexpr int64_t kMostBlocks = 65535;
  if (rows > INT32_MAX || slices > kMostBlocks) return cudaErrorInvalidValue;
  const cudaError_t sliced = VisitNumber(a.number, [&](auto number) {
    using T = typename decltype(number)::Type;
    const LaunchShape shape{.blocks = static_cast<unsigned>(rows),
                            .blocks_y = static_cast<unsigned>(slices),
                            .threads = kMomentThreads,
                            .shared_bytes = kMomentThreads / kWarp * sizeof(Moments<double>)};
    return launch(PlanesAreAligned(a.x, kChunk<T>) ? SliceMoments<T, true> : SliceMoments<T, false>, shape, a);
  });
  if (sliced != cudaSuccess) return sliced;
  const LaunchShape shape{.blocks = static_cast<unsigned>((rows + kWarp - 1) / kWarp), .blocks_y = 1, .threads = kWarp};
  return launch(MergeSlices<GroupMomentsArguments>, shape, a);
}

}  // namespace tessera::kernels::cuda
