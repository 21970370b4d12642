// The kernel of quantize_rows.h: one block per row, which it reads twice, the second time from the cache.
#pragma once

#include "kernels/cuda/number.cuh"
#include "kernels/cuda/quant_forms.cuh"
#include "kernels/cuda/quantize_rows.h"
#include "kernels/cuda/reduce.cuh"

namespace tessera::kernels::cuda {
namespace {

constexpr unsigned kQuantizeThreads = 256;

// Returns, in all threads, the largest value of the block. `warps` is as for BlockSum.
__device__ inline uint32_t BlockMost(uint32_t value, uint32_t* warps) {
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    const uint32_t other = __shfl_xor_sync(kWholeWarp, value, distance);
    value = other > value ? other : value;
  }
  if (threadIdx.x % kWarp == 0) warps[threadIdx.x / kWarp] = value;
  if (!base::Planted("kernel_missing_barrier")) __syncthreads();
  uint32_t most = 0;
  for (unsigned warp = 0; warp < blockDim.x / kWarp; ++warp) most = warps[warp] > most ? warps[warp] : most;
  return most;
}

// The codes of one chunk, adjacent in memory.
template <typename T>
struct alignas(kChunk<T>) CodeChunk {
  uint8_t at[kChunk<T>];
};

template <typename T, bool kAligned>
__global__ void __launch_bounds__(kQuantizeThreads) QuantizeRowsToE4M3(const QuantizeRowsArguments a) {
  const int64_t number = blockIdx.x, step = static_cast<int64_t>(blockDim.x) * kChunk<T>;
  const T* row = static_cast<const T*>(a.from) + number * a.columns;
  uint8_t* codes = a.codes + number * a.columns;
  WideOf<T> x[kChunk<T>];
  // The bits of magnitudes have the order of their values, with infinity and NaN above all others.
  uint32_t largest = 0;
  for (int64_t first = threadIdx.x * kChunk<T>; first < a.columns; first += step) {
    LoadNumbers<kAligned>(row, first, a.columns, x);
#pragma unroll
    for (int i = 0; i < kChunk<T>; ++i) {
      const uint32_t magnitude = BitsOfFloat(static_cast<float>(x[i])) & 0x7fffffff;
      largest = magnitude > largest ? magnitude : largest;
    }
  }
  largest = BlockMost(largest, SharedMemory<uint32_t>());
  const bool is_finite = largest < 0x7f800000;
  float scale = is_finite ? __fdiv_rn(FloatOfBits(largest), 448.0f) : FloatOfBits(0x7fc00000);
  if (scale == 0) scale = 1;
  if (threadIdx.x == 0) {
    const bool planted = base::Planted("kernel_neighbours_scale");
    a.scales[planted ? (number + 1) % a.rows : number] = scale;
  }
  for (int64_t first = threadIdx.x * kChunk<T>; first < a.columns; first += step) {
    LoadNumbers<kAligned>(row, first, a.columns, x);
    CodeChunk<T> chunk;
#pragma unroll
    for (int i = 0; i < kChunk<T>; ++i) {
      chunk.at[i] = is_finite ? CodeOfE4M3(__fdiv_rn(static_cast<float>(x[i]), scale)) : uint8_t{0};
    }
    if constexpr (kAligned) {
      *reinterpret_cast<CodeChunk<T>*>(codes + first) = chunk;
    } else {
#pragma unroll
      for (int i = 0; i < kChunk<T>; ++i) {
        if (first + i < a.columns) codes[first + i] = chunk.at[i];
      }
    }
  }
}

template <typename Launcher>
cudaError_t RunQuantizeRows(const QuantizeRowsArguments& a, const Launcher& launch) {
  if (a.rows == 0 || a.columns == 0) return cudaSuccess;
  if (a.rows > INT32_MAX) return cudaErrorInvalidValue;
  return VisitNumber(a.number, [&](auto number) {
    using T = typename decltype(number)::Type;
    const LaunchShape shape{.blocks = static_cast<unsigned>(a.rows),
                            .threads = kQuantizeThreads,
                            .shared_bytes = kQuantizeThreads / kWarp * sizeof(uint32_t)};
    const bool aligned = a.columns % kChunk<T> == 0 && IsAligned(a.from) && IsAligned(a.codes);
    return launch(aligned ? QuantizeRowsToE4M3<T, true> : QuantizeRowsToE4M3<T, false>, shape, a);
  });
}

}  // namespace
}  // namespace tessera::kernels::cuda
