// Executes CUDA kernels on the host. The host's compiler compiles a .cuh file with the headers in include/, which
// replace CUDA's own. Every thread of a block is a fiber of the calling thread. Fibers switch only at barriers and
// shuffles, warp after warp, so results are repeatable and a missing barrier shows as a wrong number. Shared memory
// starts as garbage in every block. What hangs or is undefined on a GPU throws std::logic_error.
//
// The emulation does not show races that appear in none of a launch's three orders, nor the last bit of CUDA's own
// mathematical functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <type_traits>

#define __global__
#define __device__
#define __host__
#define __shared__
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __builtin_assume_aligned(pointer, bytes) ::tessera::cuda_emulation::Aligned(pointer, bytes)
#define threadIdx (::tessera::cuda_emulation::Here().thread)
#define blockIdx (::tessera::cuda_emulation::Here().block)
#define blockDim (::tessera::cuda_emulation::Here().block_size)
#define gridDim (::tessera::cuda_emulation::Here().grid_size)

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};

namespace tessera::cuda_emulation {

inline constexpr size_t kSharedBytes = size_t{48} << 10;  // what a block may use without asking for more

// The order in which blocks, the warps of a block and the lanes of a warp run. A correct kernel computes the same bits
// in all three. kRandom uses a fixed seed, shuffles lanes and warps, and takes the turn from a warp at each shuffle.
enum class Order { kAscending, kDescending, kRandom };

// The built-in variables of the running kernel thread.
struct Position {
  dim3 thread, block, block_size, grid_size;
};
const Position& Here();

// How many kernels have run since the process began, and how many barriers of a block they have passed.
struct Counts {
  int64_t launches = 0, barriers = 0;
};
Counts Counted();

// Runs `body` for every thread of every block. Blocks have one dimension and consist of whole warps.
void RunKernel(Order order, dim3 grid, unsigned threads, size_t shared_bytes, const std::function<void()>& body);

void BlockBarrier();
void WarpBarrier(unsigned mask);
// Returns the `bits` that lane `source` of the warp passes to this call. Every lane of the warp must call it.
uint64_t Shuffle(unsigned mask, uint64_t bits, unsigned source);
unsigned Lane();

template <typename T>
T ShuffleValue(unsigned mask, T value, unsigned source) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= sizeof(uint64_t));
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = Shuffle(mask, bits, source);
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

[[noreturn]] void RejectMisaligned(const void* pointer, size_t bytes);
template <typename T>
T* Aligned(T* pointer, size_t bytes) {
  if (reinterpret_cast<uintptr_t>(pointer) % bytes != 0) RejectMisaligned(pointer, bytes);
  return pointer;
}

}  // namespace tessera::cuda_emulation

inline void __syncthreads() { tessera::cuda_emulation::BlockBarrier(); }
inline void __syncwarp(unsigned mask = 0xffffffffu) { tessera::cuda_emulation::WarpBarrier(mask); }

template <typename T>
T __shfl_sync(unsigned mask, T value, int lane) {
  return tessera::cuda_emulation::ShuffleValue(mask, value, static_cast<unsigned>(lane) % 32);
}

template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int lanes) {
  return tessera::cuda_emulation::ShuffleValue(mask, value,
                                               tessera::cuda_emulation::Lane() ^ static_cast<unsigned>(lanes));
}

// A thread keeps its own value if there is no such lane.
template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned lanes) {
  const unsigned own = tessera::cuda_emulation::Lane(), source = own + lanes;
  return tessera::cuda_emulation::ShuffleValue(mask, value, source < 32 ? source : own);
}
