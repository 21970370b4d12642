// The kernel of residual_norm.h: one block per row, which its threads keep in registers.
#pragma once

#include "kernels/cuda/number.cuh"
#include "kernels/cuda/quantize_row.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/residual_norm.h"

namespace tessera::kernels::cuda {
namespace {

// A row is processed by one thread per chunk or, if it is longer, by fewer threads with four chunks each.
constexpr unsigned kMaxNormThreads = 768, kMaxWideNormThreads = 512;
constexpr int kWideNormChunks = 4;

template <typename T>
__device__ inline const T* RowOf(const ConstRows& rows, int64_t image, int64_t token) {
  return static_cast<const T*>(rows.data) + image * rows.image_stride + token * rows.token_stride;
}

template <typename T>
__device__ inline const T* RowOf(const PerImage& rows, int64_t image) {
  return static_cast<const T*>(rows.data) + image * rows.image_stride;
}

// Computes one chunk of x + gate · y, rounded as it is stored.
template <bool kAligned, typename T>
__device__ inline void SumChunk(const ResidualNormArguments& a, int64_t image, int64_t token, int64_t first,
                                WideOf<T> (&sum)[kChunk<T>]) {
  LoadNumbers<kAligned>(RowOf<T>(a.x, image, token), first, a.channels, sum);
  if (a.y.data == nullptr) return;
  WideOf<T> y[kChunk<T>], gate[kChunk<T>];
  LoadNumbers<kAligned>(RowOf<T>(a.y, image, base::Planted("kernel_wrong_stride") ? 0 : token), first, a.channels, y);
  if (a.gate.data != nullptr) {
    LoadNumbers<kAligned>(RowOf<T>(a.gate, image), first, a.channels, gate);
#pragma unroll
    for (int i = 0; i < kChunk<T>; ++i) y[i] *= gate[i];
  }
#pragma unroll
  for (int i = 0; i < kChunk<T>; ++i) sum[i] = Widen(Narrow<T>(sum[i] + y[i]));
}

template <typename T>
__device__ inline WideOf<T> AddWide(WideOf<T> sum, WideOf<T> value) {
  return base::Planted("kernel_sum_not_widened") ? Widen(Narrow<T>(sum + value)) : sum + value;
}

// Computes the mean of the row and 1 / sqrt(variance + eps); for RMSNorm 0 and 1 / sqrt(mean of squares + eps).
template <typename T, int kChunks>
__device__ inline void RowStatistics(const ResidualNormArguments& a, const WideOf<T> (&x)[kChunks][kChunk<T>],
                                     WideOf<T>& mean, WideOf<T>& inverse) {
  using W = WideOf<T>;
  W* shared = SharedMemory<W>();
  const auto channels = static_cast<W>(a.channels);
  mean = 0;
  if (a.norm == NormKind::kLayer) {
    W total = 0;
#pragma unroll
    for (int p = 0; p < kChunks; ++p) {
#pragma unroll
      for (int i = 0; i < kChunk<T>; ++i) total = AddWide<T>(total, x[p][i]);
    }
    mean = BlockSum(total, shared) / channels;
  }
  W squares = 0;
#pragma unroll
  for (int p = 0; p < kChunks; ++p) {
    const int64_t first = (static_cast<int64_t>(p) * blockDim.x + threadIdx.x) * kChunk<T>;
#pragma unroll
    for (int i = 0; i < kChunk<T>; ++i) {
      const W difference = first + i < a.channels ? x[p][i] - mean : W(0);
      squares = AddWide<T>(squares, difference * difference);
    }
  }
  const W variance = BlockSum(squares, shared + kWarp) / channels;
  inverse = InverseRoot(variance + static_cast<W>(a.eps));
}

// Rounds and multiplies the normalised row, and writes its codes and its scale.
template <typename T, bool kAligned, int kChunks>
__device__ inline void QuantizeNorm(const ResidualNormArguments& a, int64_t row, WideOf<T> (&x)[kChunks][kChunk<T>]) {
  uint32_t largest = 0;
#pragma unroll
  for (int p = 0; p < kChunks; ++p) {
    const int64_t first = (static_cast<int64_t>(p) * blockDim.x + threadIdx.x) * kChunk<T>;
    if (base::Planted("kernel_largest_before_rounding")) largest = LargestBits(x[p], first, a.channels, largest);
#pragma unroll
    for (int i = 0; i < kChunk<T>; ++i) x[p][i] = Rounded<T>(x[p][i]);
    if (a.multiplier.data != nullptr) {
      WideOf<T> multiplier[kChunk<T>];
      LoadNumbers<kAligned>(RowOf<T>(a.multiplier, row / a.tokens), first, a.channels, multiplier);
#pragma unroll
      for (int i = 0; i < kChunk<T>; ++i) x[p][i] = Rounded<T>(x[p][i] * multiplier[i]);
    }
    if (!base::Planted("kernel_largest_before_rounding")) largest = LargestBits(x[p], first, a.channels, largest);
  }
  // No thread reads the first part of the shared memory after the barrier of the norm's last sum.
  largest = BlockMost(largest, SharedMemory<uint32_t>());
  const RowScale of = ScaleOfRow(largest, row, a.images * a.tokens, a.scales);
#pragma unroll
  for (int p = 0; p < kChunks; ++p) {
    const int64_t first = (static_cast<int64_t>(p) * blockDim.x + threadIdx.x) * kChunk<T>;
    if (first < a.channels) StoreCodes<T, kAligned>(x[p], first, a.channels, of, a.codes + row * a.channels);
  }
}

template <typename T, bool kAligned, int kChunks, bool kQuantizes>
__global__ void __launch_bounds__(kChunks == 1 ? kMaxNormThreads : kMaxWideNormThreads,
                                  kAligned&& kChunks == 1 && !kQuantizes ? 2 : 1)
    ResidualNorm(const ResidualNormArguments a) {
  using W = WideOf<T>;
  const int64_t row = blockIdx.x, image = row / a.tokens, token = row % a.tokens;
  W x[kChunks][kChunk<T>];
#pragma unroll
  for (int p = 0; p < kChunks; ++p) {
    const int64_t first = (static_cast<int64_t>(p) * blockDim.x + threadIdx.x) * kChunk<T>;
    SumChunk<kAligned, T>(a, image, token, first, x[p]);
    if (a.sum != nullptr) StoreNumbers<kAligned>(static_cast<T*>(a.sum) + row * a.channels, first, a.channels, x[p]);
  }
  if (a.norm == NormKind::kNone) return;
  W mean, inverse;
  RowStatistics<T, kChunks>(a, x, mean, inverse);
#pragma unroll
  for (int p = 0; p < kChunks; ++p) {
    const int64_t first = (static_cast<int64_t>(p) * blockDim.x + threadIdx.x) * kChunk<T>;
    W other[kChunk<T>];
#pragma unroll
    for (int i = 0; i < kChunk<T>; ++i) x[p][i] = (x[p][i] - mean) * inverse;
    if (a.factor.data != nullptr) {
      LoadNumbers<kAligned>(RowOf<T>(a.factor, image), first, a.channels, other);
      const W one = a.factor_from_one ? 1 : 0;
#pragma unroll
      for (int i = 0; i < kChunk<T>; ++i) x[p][i] *= one + other[i];
    }
    if (a.offset.data != nullptr) {
      LoadNumbers<kAligned>(RowOf<T>(a.offset, image), first, a.channels, other);
#pragma unroll
      for (int i = 0; i < kChunk<T>; ++i) x[p][i] += other[i];
    }
    if constexpr (!kQuantizes) {
      StoreNumbers<kAligned>(static_cast<T*>(a.normalised) + row * a.channels, first, a.channels, x[p]);
    }
  }
  if constexpr (kQuantizes) QuantizeNorm<T, kAligned, kChunks>(a, row, x);
}

// Returns whether every row begins and ends at a multiple of a chunk.
inline bool RowsAreAligned(const ResidualNormArguments& a, int64_t chunk) {
  for (const ConstRows& rows : {a.x, a.y}) {
    if (!IsAligned(rows.data) || rows.image_stride % chunk != 0 || rows.token_stride % chunk != 0) return false;
  }
  for (const PerImage& row : {a.gate, a.factor, a.offset, a.multiplier}) {
    if (!IsAligned(row.data) || row.image_stride % chunk != 0) return false;
  }
  return IsAligned(a.sum) && IsAligned(a.normalised) && IsAligned(a.codes) && a.channels % chunk == 0;
}

template <typename T, bool kQuantizes, typename Launcher>
cudaError_t RunResidualNormOf(const ResidualNormArguments& a, const Launcher& launch) {
  const int64_t chunks = (a.channels + kChunk<T> - 1) / kChunk<T>;
  const bool narrow = chunks <= kMaxNormThreads, aligned = RowsAreAligned(a, kChunk<T>);
  const int64_t threads = narrow ? chunks : (chunks + kWideNormChunks - 1) / kWideNormChunks;
  const LaunchShape shape{.blocks = static_cast<unsigned>(a.images * a.tokens),
                          .blocks_y = 1,
                          .threads = static_cast<unsigned>((threads + kWarp - 1) / kWarp * kWarp),
                          .shared_bytes = 2 * kWarp * sizeof(WideOf<T>)};
  if (narrow) {
    return launch(aligned ? ResidualNorm<T, true, 1, kQuantizes> : ResidualNorm<T, false, 1, kQuantizes>, shape, a);
  }
  // Codes and several chunks together need more registers than there are.
  if constexpr (kQuantizes) {
    return cudaErrorInvalidValue;
  } else {
    return launch(
        aligned ? ResidualNorm<T, true, kWideNormChunks, false> : ResidualNorm<T, false, kWideNormChunks, false>, shape,
        a);
  }
}

template <typename Launcher>
cudaError_t RunResidualNorm(const ResidualNormArguments& a, const Launcher& launch) {
  if (a.images * a.tokens == 0 || a.channels == 0) return cudaSuccess;
  if (a.channels > MaxNormChannels(a.number) || a.images * a.tokens > INT32_MAX) return cudaErrorInvalidValue;
  return VisitNumber(a.number, [&](auto number) {
    using T = typename decltype(number)::Type;
    return a.codes == nullptr ? RunResidualNormOf<T, false>(a, launch) : RunResidualNormOf<T, true>(a, launch);
  });
}

}  // namespace
}  // namespace tessera::kernels::cuda
