// The kernel of activation.h: one thread per chunk of a row.
#pragma once

#include "kernels/cuda/activation.h"
#include "kernels/cuda/number.cuh"
#include "kernels/cuda/reduce.cuh"

namespace tessera::kernels::cuda {

constexpr int kActivationThreads = 256;

// Each function is a product with a factor between 0 and 1, which preserves precision if x is far below zero.
template <typename W>
__device__ inline W Activate(Activation activation, W x) {
  switch (activation) {
    case Activation::kGeluTanh: {
      // (1 + tanh u) / 2 = 1 / (1 + e^-2u)
      const W u = W(0.79788456080286535588) * (x + W(0.044715) * x * x * x);  // sqrt(2 / pi)
      return x / (W(1) + exp(W(-2) * u));
    }
    case Activation::kGelu:
      return x * W(0.5) * erfc(x * W(-0.70710678118654752440));  // sqrt(1 / 2)
    case Activation::kSilu:
      return x / (W(1) + exp(-x));
    case Activation::kSigmoid:
      return W(1) / (W(1) + exp(-x));
  }
  return x;
}

template <typename T, bool kAligned>
__global__ void __launch_bounds__(kActivationThreads) Activations(const ActivationArguments a) {
  const int64_t row = blockIdx.x, image = row / a.tokens, token = row % a.tokens;
  const int64_t first = (static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * kChunk<T>;
  const auto begin = [&](const ConstRows& rows) {
    return static_cast<const T*>(rows.data) + image * rows.image_stride + token * rows.token_stride;
  };
  WideOf<T> x[kChunk<T>];
  LoadNumbers<kAligned>(begin(a.x), first, a.channels, x);
#pragma unroll
  for (int i = 0; i < kChunk<T>; ++i) x[i] = Activate(a.activation, x[i]);
  if (a.gate.data != nullptr) {
    WideOf<T> gate[kChunk<T>];
    LoadNumbers<kAligned>(begin(a.gate), first, a.channels, gate);
#pragma unroll
    for (int i = 0; i < kChunk<T>; ++i) x[i] *= gate[i];
  }
  StoreNumbers<kAligned>(static_cast<T*>(a.y) + row * a.channels, first, a.channels, x);
}

// Returns whether rows begin at multiples of a chunk; true for absent rows.
inline bool RowsAreAligned(const ConstRows& rows, int64_t chunk) {
  return IsAligned(rows.data) && rows.image_stride % chunk == 0 && rows.token_stride % chunk == 0;
}

template <typename Launcher>
cudaError_t RunActivation(const ActivationArguments& a, const Launcher& launch) {
  if (a.images * a.tokens == 0 || a.channels == 0) return cudaSuccess;
  return VisitNumber(a.number, [&](auto number) {
    using T = typename decltype(number)::Type;
    constexpr int64_t kOfBlock = int64_t{kActivationThreads} * kChunk<T>, kMostBlocks = 65535;
    if (a.images * a.tokens > INT32_MAX || a.channels > kMostBlocks * kOfBlock) return cudaErrorInvalidValue;
    const int64_t chunks = (a.channels + kChunk<T> - 1) / kChunk<T>;
    const int64_t threads = std::min<int64_t>((chunks + kWarp - 1) / kWarp * kWarp, kActivationThreads);
    const bool aligned = RowsAreAligned(a.x, kChunk<T>) && RowsAreAligned(a.gate, kChunk<T>) && IsAligned(a.y) &&
                         a.channels % kChunk<T> == 0;
    const LaunchShape shape{.blocks = static_cast<unsigned>(a.images * a.tokens),
                            .blocks_y = static_cast<unsigned>((chunks + threads - 1) / threads),
                            .threads = static_cast<unsigned>(threads),
                            .shared_bytes = 0};
    return launch(aligned ? Activations<T, true> : Activations<T, false>, shape, a);
  });
}

}  // namespace tessera::kernels::cuda
