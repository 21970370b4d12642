// The parts of a kernel that quantizes rows of numbers to e4m3, one block per row: the scale of the row, and its codes.
#pragma once

#include "kernels/cuda/number.cuh"
#include "kernels/cuda/quant_forms.cuh"
#include "kernels/cuda/reduce.cuh"

namespace tessera::kernels::cuda {
namespace {

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

// Returns x as it is stored in the type T.
template <typename T>
__device__ inline WideOf<T> Rounded(WideOf<T> x) {
  return Widen(Narrow<T>(x));
}

// Returns the larger of `largest` and the bits of the magnitudes of a row's numbers starting at `first`; numbers at or
// past `columns` do not count. These bits have the order of the values, with infinity and NaN above all others.
template <typename W, int kNumbers>
__device__ inline uint32_t LargestBits(const W (&x)[kNumbers], int64_t first, int64_t columns, uint32_t largest) {
#pragma unroll
  for (int i = 0; i < kNumbers; ++i) {
    const uint32_t magnitude = BitsOfFloat(static_cast<float>(x[i])) & 0x7fffffff;
    if (first + i < columns && magnitude > largest) largest = magnitude;
  }
  return largest;
}

struct RowScale {
  float scale;
  bool is_finite;  // of a row that is not, all codes are 0
};

// Writes the scale of row `row` of `rows`, given the largest of its LargestBits.
__device__ inline RowScale ScaleOfRow(uint32_t largest, int64_t row, int64_t rows, float* scales) {
  RowScale of{.scale = 0, .is_finite = largest < 0x7f800000};
  of.scale = of.is_finite ? __fdiv_rn(FloatOfBits(largest), 448.0f) : FloatOfBits(0x7fc00000);
  if (of.scale == 0) of.scale = 1;
  if (threadIdx.x == 0) scales[base::Planted("kernel_neighbours_scale") ? (row + 1) % rows : row] = of.scale;
  return of;
}

// The codes of one chunk, adjacent in memory.
template <typename T>
struct alignas(kChunk<T>) CodeChunk {
  uint8_t at[kChunk<T>];
};

// Writes the codes of a chunk of T of the row that starts at `codes`. `first` is less than `columns`.
template <typename T, bool kAligned>
__device__ inline void StoreCodes(const WideOf<T> (&x)[kChunk<T>], int64_t first, int64_t columns, const RowScale& of,
                                  uint8_t* codes) {
  CodeChunk<T> chunk;
#pragma unroll
  for (int i = 0; i < kChunk<T>; ++i) {
    chunk.at[i] = of.is_finite ? CodeOfE4M3(__fdiv_rn(static_cast<float>(x[i]), of.scale)) : uint8_t{0};
  }
  if constexpr (kAligned) {
    *reinterpret_cast<CodeChunk<T>*>(codes + first) = chunk;
  } else {
#pragma unroll
    for (int i = 0; i < kChunk<T>; ++i) {
      if (first + i < columns) codes[first + i] = chunk.at[i];
    }
  }
}

}  // namespace
}  // namespace tessera::kernels::cuda
