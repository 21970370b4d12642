// Sums over the threads of a warp and of a block, always in the same order.
#pragma once

#include "base/macros/planted.h"
#include "kernels/cuda/launch.h"

namespace tessera::kernels::cuda {

constexpr unsigned kWarp = 32;
constexpr unsigned kWholeWarp = 0xffffffffu;

// Returns, in all lanes, the sum over each group of `lanes` lanes. `lanes` is a power of 2.
template <typename W>
__device__ inline W GroupSum(W value, int lanes) {
  for (int distance = lanes / 2; distance > 0; distance /= 2) value += __shfl_xor_sync(kWholeWarp, value, distance);
  return value;
}

// The block's shared memory.
template <typename W>
__device__ inline W* SharedMemory() {
  extern __shared__ __align__(16) unsigned char shared_memory[];
  return reinterpret_cast<W*>(shared_memory);
}

// Returns the sum over the block in all of its threads. `warps`, in shared memory, has one element per warp and may be
// reused only after the next barrier.
template <typename W>
__device__ inline W BlockSum(W value, W* warps) {
  value = GroupSum(value, kWarp);
  if (blockDim.x == kWarp) return value;
  if (threadIdx.x % kWarp == 0) warps[threadIdx.x / kWarp] = value;
  if (!base::Planted("kernel_missing_barrier")) __syncthreads();
  W sum = 0;
  for (unsigned warp = 0; warp < blockDim.x / kWarp; ++warp) sum += warps[warp];
  return sum;
}

}  // namespace tessera::kernels::cuda
