// The kernel of merge.h: one block per token; each thread computes some channels of a head.
#pragma once

#include "kernels/cuda/merge.h"
#include "kernels/cuda/number.cuh"
#include "kernels/cuda/reduce.cuh"

namespace tessera::kernels::cuda {

constexpr int kMergeThreads = 128;

template <typename W>
__device__ inline W LseOf(const PartialRead& part, int64_t image, int64_t token, int64_t head) {
  return static_cast<const W*>(
      part.lse)[image * part.lse_image_stride + token * part.lse_token_stride + head * part.lse_head_stride];
}

template <typename T>
__device__ inline const T* HeadOf(const PartialRead& part, int64_t image, int64_t token, int64_t head) {
  return static_cast<const T*>(part.data) + image * part.image_stride + token * part.token_stride +
         head * part.head_stride;
}

// TRead is the type of `read`, T the type of `other`.
template <typename TRead, typename T, bool kAligned>
__global__ void __launch_bounds__(kMergeThreads) Merge(const MergeArguments a) {
  using W = WideOf<T>;
  constexpr int kNumbers = kChunk<T>;
  const int64_t row = blockIdx.x, image = row / a.tokens, token = row % a.tokens;
  const int chunks = (a.head_dim + kNumbers - 1) / kNumbers;
  for (int item = static_cast<int>(threadIdx.x); item < a.heads * chunks; item += kMergeThreads) {
    const int head = item / chunks, first = item % chunks * kNumbers;
    const W lse = LseOf<W>(a.read, image, token, head), other_lse = LseOf<W>(a.other, image, token, head);
    const W larger = lse > other_lse ? lse : other_lse, smaller = lse > other_lse ? other_lse : lse;
    // The lse of no keys is minus infinity, and its weight is 0.
    const bool empty = larger == -INFINITY;
    const W merged = empty ? larger : larger + log1p(exp(smaller - larger));
    const W weight = empty ? W(0) : exp(lse - merged), other_weight = empty ? W(0) : exp(other_lse - merged);
    W x[kNumbers], other[kNumbers];
    LoadNumbers<kAligned>(HeadOf<TRead>(a.read, image, token, head), first, a.head_dim, x);
    LoadNumbers<kAligned>(HeadOf<T>(a.other, image, token, head), first, a.head_dim, other);
#pragma unroll
    for (int i = 0; i < kNumbers; ++i) x[i] = x[i] * weight + other[i] * other_weight;
    const int64_t out = row * a.heads + head;
    StoreNumbers<kAligned>(static_cast<W*>(a.merged) + out * a.head_dim, first, a.head_dim, x);
    if (first == 0) static_cast<W*>(a.merged_lse)[out] = merged;
  }
}

// Returns whether heads begin at a multiple of 16 bytes and have a whole number of chunks of `chunk` numbers.
inline bool HeadsAreAligned(const PartialRead& part, int head_dim, int64_t chunk) {
  return IsAligned(part.data) && part.image_stride % chunk == 0 && part.token_stride % chunk == 0 &&
         part.head_stride % chunk == 0 && head_dim % chunk == 0;
}

template <typename Launcher>
cudaError_t RunMerge(const MergeArguments& a, const Launcher& launch) {
  if (a.images * a.tokens == 0 || a.heads * a.head_dim == 0) return cudaSuccess;
  if (a.images * a.tokens > INT32_MAX) return cudaErrorInvalidValue;
  const LaunchShape shape{
      .blocks = static_cast<unsigned>(a.images * a.tokens), .blocks_y = 1, .threads = kMergeThreads, .shared_bytes = 0};
  return VisitNumber(a.number, [&](auto number) {
    using T = typename decltype(number)::Type;
    const bool aligned = HeadsAreAligned(a.read, a.head_dim, kChunk<T>) &&
                         HeadsAreAligned(a.other, a.head_dim, kChunk<T>) && IsAligned(a.merged);
    if constexpr (!std::is_same_v<T, WideOf<T>>) {
      if (a.sum_is_wide) return launch(aligned ? Merge<WideOf<T>, T, true> : Merge<WideOf<T>, T, false>, shape, a);
    }
    return launch(aligned ? Merge<T, T, true> : Merge<T, T, false>, shape, a);
  });
}

}  // namespace tessera::kernels::cuda
