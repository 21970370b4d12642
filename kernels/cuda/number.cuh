// The types of numbers that kernels read and write, the wider types that they compute in, and loads and stores of both:
// in chunks of 16 bytes if the alignment allows, else one number at a time.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "base/macros/planted.h"
#include "kernels/cuda/launch.h"

namespace tessera::kernels::cuda {

constexpr int kChunkBytes = 16;
template <typename T>
constexpr int kChunk = kChunkBytes / static_cast<int>(sizeof(T));

// bf16 is computed in fp32.
template <typename T>
using WideOf = std::conditional_t<std::is_same_v<T, __nv_bfloat16>, float, T>;

template <typename T>
constexpr Number NumberOf = std::is_same_v<T, __nv_bfloat16> ? Number::kBf16
                            : std::is_same_v<T, float>       ? Number::kFloat
                                                             : Number::kDouble;

__device__ inline float Widen(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ inline float Widen(float x) { return x; }
__device__ inline double Widen(double x) { return x; }

template <typename T>
__device__ inline T Narrow(WideOf<T> x) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return __float2bfloat16_rn(x);
  } else {
    return x;
  }
}

// Exact to 2 units in the last place in fp32, without the branches of the exact division; requires |b| < 2^126.
__device__ inline float Quotient(float a, float b) { return __fdividef(a, b); }
__device__ inline double Quotient(double a, double b) { return a / b; }

__device__ inline float InverseRoot(float x) { return rsqrtf(x); }
__device__ inline double InverseRoot(double x) { return rsqrt(x); }

template <typename T>
struct alignas(kChunkBytes) Chunk {
  T at[kChunk<T>];
};

// Loads the numbers of `row` starting at `first`, widened; numbers at or past `count` read as zero. `to` holds a
// multiple of a chunk. kAligned requires that the beginning of the row, `first` and `count` are multiples of the size
// of `to`.
template <bool kAligned, typename T, int kNumbers>
__device__ inline void LoadNumbers(const T* row, int64_t first, int64_t count, WideOf<T> (&to)[kNumbers]) {
  static_assert(kNumbers % kChunk<T> == 0);
  if (base::Planted("kernel_tail_off_by_one")) --count;
  if constexpr (kAligned) {
    if (first < count) {
      const auto* from = static_cast<const T*>(__builtin_assume_aligned(row + first, kChunkBytes));
#pragma unroll
      for (int c = 0; c < kNumbers; c += kChunk<T>) {
        const Chunk<T> chunk = *reinterpret_cast<const Chunk<T>*>(from + c);
#pragma unroll
        for (int i = 0; i < kChunk<T>; ++i) to[c + i] = Widen(chunk.at[i]);
      }
      return;
    }
#pragma unroll
    for (int i = 0; i < kNumbers; ++i) to[i] = 0;
  } else {
#pragma unroll
    for (int i = 0; i < kNumbers; ++i) to[i] = first + i < count ? Widen(row[first + i]) : WideOf<T>(0);
  }
}

// Writes the range that LoadNumbers reads, rounding each number once.
template <bool kAligned, typename T, int kNumbers>
__device__ inline void StoreNumbers(T* row, int64_t first, int64_t count, const WideOf<T> (&from)[kNumbers]) {
  static_assert(kNumbers % kChunk<T> == 0);
  if constexpr (kAligned) {
    if (first >= count) return;
    auto* to = static_cast<T*>(__builtin_assume_aligned(row + first, kChunkBytes));
#pragma unroll
    for (int c = 0; c < kNumbers; c += kChunk<T>) {
      Chunk<T> chunk;
#pragma unroll
      for (int i = 0; i < kChunk<T>; ++i) chunk.at[i] = Narrow<T>(from[c + i]);
      *reinterpret_cast<Chunk<T>*>(to + c) = chunk;
    }
  } else {
#pragma unroll
    for (int i = 0; i < kNumbers; ++i) {
      if (first + i < count) row[first + i] = Narrow<T>(from[i]);
    }
  }
}

inline bool IsAligned(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % kChunkBytes == 0; }

template <typename T>
struct NumberType {
  using Type = T;
};

// Calls `visit` with the NumberType of `number`.
template <typename Visitor>
cudaError_t VisitNumber(Number number, const Visitor& visit) {
  switch (number) {
    case Number::kBf16:
      return visit(NumberType<__nv_bfloat16>());
    case Number::kFloat:
      return visit(NumberType<float>());
    case Number::kDouble:
      return visit(NumberType<double>());
  }
  return cudaErrorInvalidValue;
}

}  // namespace tessera::kernels::cuda
