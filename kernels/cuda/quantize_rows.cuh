// The kernel of quantize_rows.h: one block per row, which it reads and activates twice, the second time from the cache.
#pragma once

#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/number.cuh"
#include "kernels/cuda/quantize_row.cuh"
#include "kernels/cuda/quantize_rows.h"
#include "kernels/cuda/reduce.cuh"

namespace tessera::kernels::cuda {
namespace {

constexpr unsigned kQuantizeThreads = 256;

// Loads a chunk of a row and, if kActivates is set, activates it. `largest` becomes at least the bits of its largest
// magnitude.
template <typename T, bool kAligned, bool kActivates>
__device__ inline void LoadChunk(const QuantizeRowsArguments& a, int64_t row, int64_t first, WideOf<T> (&x)[kChunk<T>],
                                 uint32_t& largest) {
  LoadNumbers<kAligned>(static_cast<const T*>(a.from) + row * a.row_stride, first, a.columns, x);
  if constexpr (kActivates) {
#pragma unroll
    for (int i = 0; i < kChunk<T>; ++i) x[i] = Activate(a.activation, x[i]);
    if (a.gate != nullptr) {
      WideOf<T> gate[kChunk<T>];
      LoadNumbers<kAligned>(static_cast<const T*>(a.gate) + row * a.gate_stride, first, a.columns, gate);
#pragma unroll
      for (int i = 0; i < kChunk<T>; ++i) x[i] *= gate[i];
    }
    if (base::Planted("kernel_largest_before_rounding")) largest = LargestBits(x, first, a.columns, largest);
#pragma unroll
    for (int i = 0; i < kChunk<T>; ++i) x[i] = Rounded<T>(x[i]);
    if (base::Planted("kernel_largest_before_rounding")) return;
  }
  largest = LargestBits(x, first, a.columns, largest);
}

template <typename T, bool kAligned, bool kActivates>
__global__ void __launch_bounds__(kQuantizeThreads) QuantizeRowsToE4M3(const QuantizeRowsArguments a) {
  const int64_t row = blockIdx.x, step = static_cast<int64_t>(blockDim.x) * kChunk<T>;
  WideOf<T> x[kChunk<T>];
  uint32_t largest = 0, ignored = 0;
  for (int64_t first = threadIdx.x * kChunk<T>; first < a.columns; first += step) {
    LoadChunk<T, kAligned, kActivates>(a, row, first, x, largest);
  }
  const RowScale of = ScaleOfRow(BlockMost(largest, SharedMemory<uint32_t>()), row, a.rows, a.scales);
  for (int64_t first = threadIdx.x * kChunk<T>; first < a.columns; first += step) {
    LoadChunk<T, kAligned, kActivates>(a, row, first, x, ignored);
    StoreCodes<T, kAligned>(x, first, a.columns, of, a.codes + row * a.columns);
  }
}

template <typename Launcher>
cudaError_t RunQuantizeRows(const QuantizeRowsArguments& a, const Launcher& launch) {
  if (a.rows == 0 || a.columns == 0) return cudaSuccess;
  if (a.rows > INT32_MAX) return cudaErrorInvalidValue;
  return VisitNumber(a.number, [&](auto number) {
    using T = typename decltype(number)::Type;
    const LaunchShape shape{.blocks = static_cast<unsigned>(a.rows),
                            .blocks_y = 1,
                            .threads = kQuantizeThreads,
                            .shared_bytes = kQuantizeThreads / kWarp * sizeof(uint32_t)};
    const bool aligned = a.columns % kChunk<T> == 0 && a.row_stride % kChunk<T> == 0 &&
                         a.gate_stride % kChunk<T> == 0 && IsAligned(a.from) && IsAligned(a.gate) && IsAligned(a.codes);
    if (a.activates) {
      return launch(aligned ? QuantizeRowsToE4M3<T, true, true> : QuantizeRowsToE4M3<T, false, true>, shape, a);
    }
    return launch(aligned ? QuantizeRowsToE4M3<T, true, false> : QuantizeRowsToE4M3<T, false, false>, shape, a);
  });
}

}  // namespace
}  // namespace tessera::kernels::cuda
