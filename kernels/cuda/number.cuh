// The numbers that kernels read and write, the wider ones that they compute in, and how both travel: in chunks of 16
// bytes where the memory allows, one by one where it does not.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

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

template <typename T>
struct alignas(kChunkBytes) Chunk {
  T at[kChunk<T>];
};

// The chunk of `row` that begins at `first`, widened; zeros behind the row's `count` numbers. kAligned: row and count
// are multiples of a chunk.
template <bool kAligned, typename T>
__device__ inline void LoadChunk(const T* row, int64_t first, int64_t count, WideOf<T> (&to)[kChunk<T>]) {
  if (base::Planted("kernel_tail_off_by_one")) --count;
  if constexpr (kAligned) {
    if (first < count) {
      const auto* from = static_cast<const T*>(__builtin_assume_aligned(row + first, kChunkBytes));
      const Chunk<T> chunk = *reinterpret_cast<const Chunk<T>*>(from);
#pragma unroll
      for (int i = 0; i < kChunk<T>; ++i) to[i] = Widen(chunk.at[i]);
      return;
    }
#pragma unroll
    for (int i = 0; i < kChunk<T>; ++i) to[i] = 0;
  } else {
#pragma unroll
    for (int i = 0; i < kChunk<T>; ++i) to[i] = first + i < count ? Widen(row[first + i]) : WideOf<T>(0);
  }
}

// Writes what LoadChunk would read, each number rounded once.
template <bool kAligned, typename T>
__device__ inline void StoreChunk(T* row, int64_t first, int64_t count, const WideOf<T> (&from)[kChunk<T>]) {
  if constexpr (kAligned) {
    if (first >= count) return;
    Chunk<T> chunk;
#pragma unroll
    for (int i = 0; i < kChunk<T>; ++i) chunk.at[i] = Narrow<T>(from[i]);
    auto* to = static_cast<T*>(__builtin_assume_aligned(row + first, kChunkBytes));
    *reinterpret_cast<Chunk<T>*>(to) = chunk;
  } else {
#pragma unroll
    for (int i = 0; i < kChunk<T>; ++i) {
      if (first + i < count) row[first + i] = Narrow<T>(from[i]);
    }
  }
}

inline bool IsAligned(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % kChunkBytes == 0; }

inline int64_t BytesOf(Number number) {
  switch (number) {
    case Number::kBf16:
      return 2;
    case Number::kFloat:
      return 4;
    case Number::kDouble:
      return 8;
  }
  return 0;
}

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
