// The kernel of weighted_sums.h: one thread per chunk of the tensors.
#pragma once

#include "kernels/cuda/number.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/weighted_sums.h"
#include "kernels/reference/digest.h"

namespace tessera::kernels::cuda {

constexpr int kWeightedSumsThreads = 256;

// Product and sum are rounded separately, so that a result does not depend on its position.
__device__ inline float AddProduct(float sum, float weight, float x) { return __fadd_rn(sum, __fmul_rn(weight, x)); }
__device__ inline double AddProduct(double sum, double weight, double x) {
  return __dadd_rn(sum, __dmul_rn(weight, x));
}

__device__ inline long long WordOf(float x) { return __float_as_int(x); }
__device__ inline long long WordOf(double x) { return __double_as_longlong(x); }

// Adds the numbers x[0 … kNumbers), which begin at element `first`, to the state.
template <typename T, int kNumbers>
__device__ inline void AddToState(const T (&x)[kNumbers], int64_t first, int64_t count, unsigned long long* state) {
  bool finite = true;
  unsigned long long digest = 0;
#pragma unroll
  for (int i = 0; i < kNumbers; ++i) {
    if (first + i >= count) break;
    finite = finite && x[i] - x[i] == 0;
    digest += static_cast<unsigned long long>(WordOf(x[i])) *
              (static_cast<unsigned long long>(first + i + 1) * kDigestSpread + 1);
  }
  if (!finite) state[0] = 0;
  digest = BlockSum(digest, SharedMemory<unsigned long long>());
  if (threadIdx.x == 0) atomicAdd(state + 1, digest);
}

template <typename T, bool kAligned>
__global__ void __launch_bounds__(kWeightedSumsThreads) WeightedSums(const WeightedSumsArguments a) {
  constexpr int kNumbers = kChunk<T>;
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * kNumbers;
  T sums[kMostSums][kNumbers];
  bool begun[kMostSums] = {};
#pragma unroll
  for (int s = 0; s < kMostSums; ++s) {
#pragma unroll
    for (int i = 0; i < kNumbers; ++i) sums[s][i] = 0;
  }
  for (int input = 0; input < a.inputs; ++input) {
    T x[kNumbers];
    LoadNumbers<kAligned>(static_cast<const T*>(a.from[input]), first, a.count, x);
#pragma unroll
    for (int s = 0; s < kMostSums; ++s) {
      const T weight = static_cast<T>(a.weights[s][input]);
      if (a.weights[s][input] == 0) continue;
#pragma unroll
      for (int i = 0; i < kNumbers; ++i) sums[s][i] = begun[s] ? AddProduct(sums[s][i], weight, x[i]) : weight * x[i];
      begun[s] = true;
    }
  }
#pragma unroll
  for (int s = 0; s < kMostSums; ++s) {
    if (a.to[s] != nullptr) StoreNumbers<kAligned>(static_cast<T*>(a.to[s]), first, a.count, sums[s]);
  }
  if (a.state != nullptr) AddToState(sums[0], first, a.count, a.state);
}

template <typename Launcher>
cudaError_t RunWeightedSums(const WeightedSumsArguments& a, const Launcher& launch) {
  if (a.count == 0) return cudaSuccess;
  return VisitNumber(a.number, [&](auto number) {
    using T = typename decltype(number)::Type;
    if constexpr (std::is_same_v<T, __nv_bfloat16>) {
      return cudaErrorInvalidValue;
    } else {
      constexpr int64_t kOfBlock = int64_t{kWeightedSumsThreads} * kChunk<T>;
      const int64_t blocks = (a.count + kOfBlock - 1) / kOfBlock;
      if (blocks > INT32_MAX) return cudaErrorInvalidValue;
      const LaunchShape shape{.blocks = static_cast<unsigned>(blocks),
                              .blocks_y = 1,
                              .threads = kWeightedSumsThreads,
                              .shared_bytes = kWarp * sizeof(unsigned long long)};
      bool aligned = a.count % kChunk<T> == 0;
      for (int input = 0; input < a.inputs; ++input) aligned = aligned && IsAligned(a.from[input]);
      for (const void* to : a.to) aligned = aligned && IsAligned(to);
      return launch(aligned ? WeightedSums<T, true> : WeightedSums<T, false>, shape, a);
    }
  });
}

}  // namespace tessera::kernels::cuda
