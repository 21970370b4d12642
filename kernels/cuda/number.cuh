// The numbers that kernels read and write, the wider ones that they compute in, and how both travel: in chunks of 16
// bytes where the memory allows, one by one where it does not.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "base/planted.h"
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

// To 2 units of the last place in fp32, without the branches of the exact division; |b| is below 2^126.
__device__ inline float Quotient(float a, float b) { return __fdividef(a, b); }
__device__ inline double Quotient(double a, double b) { return a / b; }

__device__ inline float InverseRoot(float x) { return rsqrtf(x); }
__device__ inline double InverseRoot(double x) { return rsqrt(x); }

template <typename T>
struct alignas(kChunkBytes) Chunk {
  T at[kChunk<T>];
};

// The numbers of `row` from `first` on, widened; zeros behind the row's `count`. As many as `to` has, a multiple of a
// chunk. kAligned: the row's begin, `first` and `count` are multiples of what `to` has.
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

// Writes what LoadNumbers would read, each number rounded once.
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
