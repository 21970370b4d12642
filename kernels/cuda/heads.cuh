// The kernel of heads.h: one block per token, one group of lanes per head.
#pragma once

#include "kernels/cuda/heads.h"
#include "kernels/cuda/number.cuh"
#include "kernels/cuda/reduce.cuh"

namespace tessera::kernels::cuda {

constexpr unsigned kHeadsThreads = 256;
constexpr int kWideHeadChunks = 4;  // per lane, if a head has more chunks than a warp has lanes

// Normalises a head over its channels, which `lanes` lanes hold. Every lane of the warp must call it.
template <bool kAligned, typename T, int kChunks>
__device__ inline void NormalizeHead(const HeadsPart& part, int lanes, int head_dim,
                                     WideOf<T> (&x)[kChunks][kChunk<T>]) {
  using W = WideOf<T>;
  const int lane = static_cast<int>(threadIdx.x) % lanes;
  W mean = 0;
  if (part.bias != nullptr) {
    W total = 0;
#pragma unroll
    for (int p = 0; p < kChunks; ++p) {
#pragma unroll
      for (int i = 0; i < kChunk<T>; ++i) total += x[p][i];
    }
    mean = GroupSum(total, lanes) / static_cast<W>(head_dim);
  }
  W squares = 0;
#pragma unroll
  for (int p = 0; p < kChunks; ++p) {
    const int first = (p * lanes + lane) * kChunk<T>;
#pragma unroll
    for (int i = 0; i < kChunk<T>; ++i) {
      const W difference = first + i < head_dim ? x[p][i] - mean : W(0);
      squares += difference * difference;
    }
  }
  const W variance = GroupSum(squares, lanes) / static_cast<W>(head_dim);
  const W inverse = InverseRoot(variance + static_cast<W>(part.eps));
#pragma unroll
  for (int p = 0; p < kChunks; ++p) {
    const int first = (p * lanes + lane) * kChunk<T>;
    W weight[kChunk<T>], bias[kChunk<T>] = {};
    LoadNumbers<kAligned>(static_cast<const T*>(part.weight), first, head_dim, weight);
    if (part.bias != nullptr) LoadNumbers<kAligned>(static_cast<const T*>(part.bias), first, head_dim, bias);
#pragma unroll
    for (int i = 0; i < kChunk<T>; ++i) x[p][i] = (x[p][i] - mean) * inverse * weight[i] + bias[i];
  }
}

// Rotates channels 2k and 2k + 1 of a token by its angle k.
template <typename T, int kChunks>
__device__ inline void TurnHead(const WideOf<T> (&cosines)[kChunks][kChunk<T> / 2],
                                const WideOf<T> (&sines)[kChunks][kChunk<T> / 2], WideOf<T> (&x)[kChunks][kChunk<T>]) {
#pragma unroll
  for (int p = 0; p < kChunks; ++p) {
#pragma unroll
    for (int k = 0; k < kChunk<T> / 2; ++k) {
      const WideOf<T> even = x[p][2 * k], odd = x[p][2 * k + 1];
      x[p][2 * k] = even * cosines[p][k] - odd * sines[p][k];
      x[p][2 * k + 1] = odd * cosines[p][k] + even * sines[p][k];
    }
  }
}

// Loads a token's angles for the channels that the lane holds; without angles, loads those of no rotation.
template <typename T, int kChunks>
__device__ inline void LoadAngles(const HeadsArguments& a, int64_t token, int lanes,
                                  WideOf<T> (&cosines)[kChunks][kChunk<T> / 2],
                                  WideOf<T> (&sines)[kChunks][kChunk<T> / 2]) {
  const int half = a.head_dim / 2, lane = static_cast<int>(threadIdx.x) % lanes;
  const auto* cos = static_cast<const WideOf<T>*>(a.cos);
  const auto* sin = static_cast<const WideOf<T>*>(a.sin);
#pragma unroll
  for (int p = 0; p < kChunks; ++p) {
    const int first = (p * lanes + lane) * (kChunk<T> / 2);
#pragma unroll
    for (int k = 0; k < kChunk<T> / 2; ++k) {
      const bool turns = cos != nullptr && first + k < half;
      cosines[p][k] = turns ? cos[token * half + first + k] : WideOf<T>(1);
      sines[p][k] = turns ? sin[token * half + first + k] : WideOf<T>(0);
    }
  }
}

template <typename T, bool kAligned, int kChunks>
__global__ void __launch_bounds__(kHeadsThreads, 1) Heads(const HeadsArguments a) {
  using W = WideOf<T>;
  const int chunks = (a.head_dim + kChunk<T> - 1) / kChunk<T>;
  int lanes = 1;
  while (lanes * kChunks < chunks) lanes *= 2;
  const int lane = static_cast<int>(threadIdx.x) % lanes, groups = static_cast<int>(blockDim.x) / lanes;
  const int64_t image = blockIdx.x / a.tokens, token = blockIdx.x % a.tokens;
  const T* packed =
      static_cast<const T*>(a.packed.data) + image * a.packed.image_stride + token * a.packed.token_stride;
  W cosines[kChunks][kChunk<T> / 2], sines[kChunks][kChunk<T> / 2];
  LoadAngles<T, kChunks>(a, token, lanes, cosines, sines);
  for (int p = 0; p < a.part_count; ++p) {
    const HeadsPart& part = a.parts[p];
    const int heads = part.groups * part.heads;
    T* row = static_cast<T*>(part.data) + image * part.image_stride + token * part.token_stride;
    // Every lane runs every round, because shuffles need whole warps.
    for (int round = 0; round < heads; round += groups) {
      const int head = round + static_cast<int>(threadIdx.x) / lanes;
      W x[kChunks][kChunk<T>];
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        const int first = (c * lanes + lane) * kChunk<T>;
        LoadNumbers<kAligned>(packed + static_cast<int64_t>(head) * a.head_dim, first, head < heads ? a.head_dim : 0,
                              x[c]);
      }
      if (part.weight != nullptr) NormalizeHead<kAligned, T, kChunks>(part, lanes, a.head_dim, x);
      if (part.turns) TurnHead<T, kChunks>(cosines, sines, x);
      if (head >= heads) continue;
      const int64_t group = head / part.heads, in_group = head % part.heads;
      T* to =
          row + (base::Planted("kernel_wrong_stride") ? 0 : group * part.group_stride) + in_group * part.head_stride;
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        StoreNumbers<kAligned>(to, (c * lanes + lane) * kChunk<T>, a.head_dim, x[c]);
      }
    }
    packed += static_cast<int64_t>(heads) * a.head_dim;
  }
}

// Returns whether every head begins and ends at a multiple of a chunk, in the input and in the output.
inline bool HeadsAreAligned(const HeadsArguments& a, int64_t chunk) {
  if (!IsAligned(a.packed.data) || a.packed.image_stride % chunk != 0 || a.packed.token_stride % chunk != 0 ||
      a.head_dim % chunk != 0) {
    return false;
  }
  for (int p = 0; p < a.part_count; ++p) {
    const HeadsPart& part = a.parts[p];
    for (const void* memory : {static_cast<const void*>(part.data), part.weight, part.bias}) {
      if (!IsAligned(memory)) return false;
    }
    for (const int64_t stride : {part.image_stride, part.token_stride, part.group_stride, part.head_stride}) {
      if (stride % chunk != 0) return false;
    }
  }
  return true;
}

template <typename Launcher>
cudaError_t RunHeads(const HeadsArguments& a, const Launcher& launch) {
  int most_heads = 0;
  bool turns = false;
  for (int p = 0; p < a.part_count; ++p) {
    most_heads = std::max(most_heads, a.parts[p].groups * a.parts[p].heads);
    turns = turns || a.parts[p].turns;
  }
  if (a.images * a.tokens == 0 || most_heads == 0 || a.head_dim == 0) return cudaSuccess;
  if (a.head_dim > MaxHeadDim(a.number) || a.images * a.tokens > INT32_MAX || (turns && a.head_dim % 2 != 0)) {
    return cudaErrorInvalidValue;
  }
  return VisitNumber(a.number, [&](auto number) {
    using T = typename decltype(number)::Type;
    constexpr int kWidest = MaxHeadDim(NumberOf<T>) > static_cast<int>(kWarp) * kChunk<T> ? kWideHeadChunks : 1;
    static_assert(MaxHeadDim(NumberOf<T>) <= static_cast<int>(kWarp) * kChunk<T> * kWidest);
    const bool narrow = a.head_dim <= static_cast<int>(kWarp) * kChunk<T>;
    const bool aligned = HeadsAreAligned(a, kChunk<T>);
    const LaunchShape shape{.blocks = static_cast<unsigned>(a.images * a.tokens),
                            .blocks_y = 1,
                            .threads = kHeadsThreads,
                            .shared_bytes = 0};
    if (narrow) return launch(aligned ? Heads<T, true, 1> : Heads<T, false, 1>, shape, a);
    return launch(aligned ? Heads<T, true, kWidest> : Heads<T, false, kWidest>, shape, a);
  });
}

}  // namespace tessera::kernels::cuda
