// The kernels of group_moments.h.
#pragma once

#include "kernels/cuda/channel_affine.cuh"
#include "kernels/cuda/group_moments.h"
#include "kernels/cuda/number.cuh"
#include "kernels/cuda/reduce.cuh"

namespace tessera::kernels::cuda {

constexpr int kMomentThreads = 256, kSliceMergeThreads = 128;

// Statistics of `count` numbers: their mean, and the sum of squared differences from it.
template <typename W>
struct Moments {
  W count = 0, mean = 0, squares = 0;

  // Combines two parts (Chan, Golub and LeVeque, 1979).
  __device__ void Add(const Moments& other) {
    if (other.count == W(0)) return;
    const W whole = count + other.count, difference = other.mean - mean, part = Quotient(other.count, whole);
    mean += difference * part;
    squares += other.squares + difference * difference * count * part;
    count = whole;
  }
};

// Returns the moments of the whole block in the first thread. `warps`, in shared memory, has one element per warp.
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
    if constexpr (kAligned) {  // planes are multiples of a chunk
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

// A thread reads the same chunk of channels of every `lanes`-th pixel. The block then merges the threads of each
// channel, and then the channels of each group, each in a fixed order.
template <typename T, bool kAligned>
__global__ void __launch_bounds__(kMomentThreads) PixelSliceMoments(const PixelMomentsArguments a) {
  using W = WideOf<T>;
  const int64_t image = blockIdx.x, begin = blockIdx.y * a.slice_pixels;
  const int64_t end = begin + a.slice_pixels < a.x.pixels ? begin + a.slice_pixels : a.x.pixels;
  const int all_channels = static_cast<int>(a.x.channels), groups = static_cast<int>(a.groups);
  const int chunks = (all_channels + kChunk<T> - 1) / kChunk<T>;  // per pixel
  const int lanes = kMomentThreads / chunks, lane = static_cast<int>(threadIdx.x) / chunks;
  const int chunk = static_cast<int>(threadIdx.x) % chunks;
  const T* from = static_cast<const T*>(a.x.data) + image * a.x.image_stride;
  // Sums of differences from a channel's first number, which is close enough to the mean to keep their precision.
  W count = 0, base[kChunk<T>] = {}, sums[kChunk<T>] = {}, squares[kChunk<T>] = {};
  for (int64_t pixel = begin + lane; lane < lanes && pixel < end; pixel += lanes) {
    W x[kChunk<T>];
    LoadNumbers<kAligned>(from + pixel * a.x.pixel_stride, static_cast<int64_t>(chunk) * kChunk<T>, a.x.channels, x);
#pragma unroll
    for (int i = 0; i < kChunk<T>; ++i) {
      if (count == W(0)) base[i] = x[i];
      const W difference = x[i] - base[i];
      sums[i] += difference;
      squares[i] += difference * difference;
    }
    count += W(1);
  }
  const W part = count == W(0) ? W(0) : Quotient(W(1), count);
  // [lanes][width], where width is the number of channels rounded up to whole chunks.
  Moments<W>* const all = SharedMemory<Moments<W>>();
  const int width = chunks * kChunk<T>;
#pragma unroll
  for (int i = 0; i < kChunk<T>; ++i) {
    if (lane >= lanes) break;
    Moments<W>& own = all[lane * width + chunk * kChunk<T> + i];
    own.count = count;
    const W left = squares[i] - sums[i] * sums[i] * part;
    own.mean = base[i] + sums[i] * part;
    own.squares = left > W(0) ? left : W(0);
  }
  if (!base::Planted("kernel_missing_barrier")) __syncthreads();
  for (int channel = static_cast<int>(threadIdx.x); channel < width; channel += kMomentThreads) {
    for (int of_lane = 1; of_lane < lanes; ++of_lane) all[channel].Add(all[of_lane * width + channel]);
  }
  __syncthreads();
  const int channels = all_channels / groups;  // per group
  for (int group = static_cast<int>(threadIdx.x); group < groups; group += kMomentThreads) {
    Moments<W> whole;
    for (int channel = group * channels; channel < (group + 1) * channels; ++channel) whole.Add(all[channel]);
    const int64_t place = (image * a.groups + group) * gridDim.y + blockIdx.y;
    a.slice_means[place] = whole.mean;
    a.slice_squares[place] = whole.squares;
  }
}

// Numbers of a group in one slice; the last slice may have fewer.
inline __host__ __device__ int64_t NumbersOfSlice(const GroupMomentsArguments&) { return kMomentSlice; }
inline __host__ __device__ int64_t NumbersOfSlice(const PixelMomentsArguments& a) {
  return a.slice_pixels * (a.x.channels / a.groups);
}
inline __host__ __device__ int64_t NumbersOfGroup(const GroupMomentsArguments& a) {
  return a.x.channels / a.groups * a.x.plane;
}
inline __host__ __device__ int64_t NumbersOfGroup(const PixelMomentsArguments& a) {
  return a.x.channels / a.groups * a.x.pixels;
}

// One block per group, whose threads read the slices in turn.
template <typename Arguments>
__global__ void __launch_bounds__(kSliceMergeThreads) MergeSlices(const Arguments a) {
  const int64_t row = blockIdx.x, numbers = NumbersOfGroup(a), of_slice = NumbersOfSlice(a);
  const int64_t slices = (numbers + of_slice - 1) / of_slice;
  Moments<double> own;
  for (int64_t slice = threadIdx.x; slice < slices; slice += kSliceMergeThreads) {
    const int64_t left = numbers - slice * of_slice;
    Moments<double> moments;
    moments.count = static_cast<double>(left < of_slice ? left : of_slice);
    moments.mean = a.slice_means[row * slices + slice];
    moments.squares = a.slice_squares[row * slices + slice];
    own.Add(moments);
  }
  own = BlockMoments(own, SharedMemory<Moments<double>>());
  if (threadIdx.x != 0) return;
  a.means[row] = own.mean;
  a.squares[row] = own.squares;
}

template <typename Arguments, typename Launcher>
cudaError_t RunMergeSlices(const Arguments& a, const Launcher& launch) {
  const LaunchShape shape{.blocks = static_cast<unsigned>(a.x.images * a.groups),
                          .blocks_y = 1,
                          .threads = kSliceMergeThreads,
                          .shared_bytes = kSliceMergeThreads / kWarp * sizeof(Moments<double>)};
  return launch(MergeSlices<Arguments>, shape, a);
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
  return RunMergeSlices(a, launch);
}

template <typename Launcher>
cudaError_t RunGroupMoments(PixelMomentsArguments a, const Launcher& launch) {
  a.slice_pixels = MomentPixels(a.x);
  if (a.x.images * a.groups == 0 || a.x.channels * a.x.pixels == 0) return cudaSuccess;
  const int64_t slices = PixelMomentSlices(a.x);
  constexpr int64_t kMostBlocks = 65535;
  if (a.x.images * a.groups > INT32_MAX || slices > kMostBlocks || a.x.channels > kMostMomentChannels) {
    return cudaErrorInvalidValue;
  }
  const cudaError_t sliced = VisitNumber(a.number, [&](auto number) {
    using T = typename decltype(number)::Type;
    using Place = Moments<WideOf<T>>;
    static_assert(kMostMomentChannels <= int64_t{kMomentThreads} * kChunk<T>);
    const LaunchShape shape{.blocks = static_cast<unsigned>(a.x.images),
                            .blocks_y = static_cast<unsigned>(slices),
                            .threads = kMomentThreads,
                            .shared_bytes = kMomentThreads * kChunk<T> * sizeof(Place)};
    return launch(PixelsAreAligned(a.x, kChunk<T>) ? PixelSliceMoments<T, true> : PixelSliceMoments<T, false>, shape,
                  a);
  });
  return sliced != cudaSuccess ? sliced : RunMergeSlices(a, launch);
}

}  // namespace tessera::kernels::cuda
