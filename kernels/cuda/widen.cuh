// The kernel of widen.h: one thread for kWidenNumbers adjacent values of a row.
#pragma once

#include "kernels/cuda/number.cuh"
#include "kernels/cuda/quant_forms.cuh"
#include "kernels/cuda/widen.h"

namespace tessera::kernels::cuda {
namespace {

constexpr int kWidenThreads = 128;
constexpr int kWidenNumbers = 8;  // every group of values with one factor is whole runs of these

using WidenedNumbers = float[kWidenNumbers];

// Computes values from `first` on of a row in blocks.
template <typename Form>
__device__ inline void WidenBlocks(const uint8_t* row, int64_t first, WidenedNumbers& values) {
  static_assert(Form::kGroup % kWidenNumbers == 0);
  const uint8_t* block = row + first / Form::kValues * Form::kBytes;
  const int at = static_cast<int>(first % Form::kValues);
  const int group = base::Planted("kernel_neighbours_scale") ? at / Form::kGroup ^ 1 : at / Form::kGroup;
  const float factor = Form::Factor(block, group);
  float offset = 0;
  if constexpr (Form::kHasOffset) offset = Form::Offset(block, group);
#pragma unroll
  for (int i = 0; i < kWidenNumbers; ++i) {
    values[i] = __fmul_rn(factor, static_cast<float>(Form::Code(block, at + i)));
    if constexpr (Form::kHasOffset) values[i] = __fadd_rn(values[i], offset);
  }
}

// Computes value i of a row whose scales are apart from it.
__device__ inline float WidenOne(const WidenArguments& a, const uint8_t* row, int64_t number, int64_t i) {
  if (base::Planted("kernel_neighbours_scale")) number = number == 0 ? 1 : 0;
  switch (a.type) {
    case QuantType::kInt8:
      return static_cast<float>(static_cast<int8_t>(row[i])) * a.scales[number];
    case QuantType::kF8E4M3:
      return FloatOfE4M3(row[i]) * a.scales[number];
    case QuantType::kF8E5M2:
      return FloatOfE5M2(row[i]) * a.scales[number];
    default:
      return a.table[i % 2 == 0 ? row[i / 2] >> 4 : row[i / 2] & 15] *
             a.scales[number * (a.columns / a.scale_block) + i / a.scale_block];
  }
}

template <typename T, bool kAligned>
__global__ void __launch_bounds__(kWidenThreads) WidenWeights(const WidenArguments a) {
  const auto blocks_of_row =
      static_cast<unsigned>((a.columns + kWidenThreads * kWidenNumbers - 1) / (kWidenThreads * kWidenNumbers));
  const int64_t number = blockIdx.x / blocks_of_row;
  const int64_t first =
      (static_cast<int64_t>(blockIdx.x % blocks_of_row) * kWidenThreads + threadIdx.x) * kWidenNumbers;
  if (first >= a.columns) return;
  const uint8_t* row = a.bytes + number * a.row_bytes;
  WidenedNumbers values = {};
  if (a.type >= QuantType::kQ4_0) {  // HasOwnScales, which no device can call
    VisitForm(a.type, [&](auto form) { WidenBlocks<decltype(form)>(row, first, values); });
  } else {
#pragma unroll
    for (int i = 0; i < kWidenNumbers; ++i) {
      if (first + i < a.columns) values[i] = WidenOne(a, row, number, first + i);
    }
  }
  WideOf<T> wide[kWidenNumbers];
#pragma unroll
  for (int i = 0; i < kWidenNumbers; ++i) wide[i] = values[i];
  StoreNumbers<kAligned>(static_cast<T*>(a.to) + number * a.columns, first, a.columns, wide);
}

template <typename Launcher>
cudaError_t RunWiden(const WidenArguments& a, const Launcher& launch) {
  if (a.rows == 0 || a.columns == 0) return cudaSuccess;
  return VisitNumber(a.number, [&](auto number) {
    using T = typename decltype(number)::Type;
    constexpr int64_t kOfBlock = int64_t{kWidenThreads} * kWidenNumbers;
    const int64_t blocks = a.rows * ((a.columns + kOfBlock - 1) / kOfBlock);
    if (blocks > INT32_MAX) return cudaErrorInvalidValue;
    const LaunchShape shape{.blocks = static_cast<unsigned>(blocks), .threads = kWidenThreads};
    const bool aligned = a.columns % kWidenNumbers == 0 && IsAligned(a.to);
    return launch(aligned ? WidenWeights<T, true> : WidenWeights<T, false>, shape, a);
  });
}

}  // namespace
}  // namespace tessera::kernels::cuda
