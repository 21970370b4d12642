// Runs the kernel that quantizes activations on random rows, as they are and after an activation function.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/quantize_rows.cuh"
#include "kernels/quantized/quant_rows.h"
#include "tests/support/cuda_emulation/kernel_runs.h"

namespace tessera::kernels::cuda {

// Rows of numbers whose sizes differ from row to row; the second one is zero, and the last two, if there are more than
// two, are not finite.
template <typename T>
class QuantizeRowsRun final {
 public:
  QuantizeRowsRun(int64_t rows, int64_t columns, int64_t offset)
      : values_(typename Rows<T>::Layout{.tokens = rows, .channels = columns, .offset = offset}),
        codes_(static_cast<size_t>(rows * columns), 0xff),
        scales_(static_cast<size_t>(rows), -1) {
    std::mt19937 random(static_cast<unsigned>(columns));
    std::normal_distribution<double> normal;
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t i = 0; i < columns; ++i) {
        values_.data()[row * columns + i] =
            NumberTraits<T>::From(row == 1 ? 0 : std::ldexp(normal(random), static_cast<int>(8 * row - 30 + i % 16)));
      }
    }
    if (rows > 2) {
      values_.data()[(rows - 2) * columns] = NumberTraits<T>::From(-INFINITY);
      values_.data()[rows * columns - 1] = NumberTraits<T>::From(NAN);
    }
    arguments_ = {.number = NumberTraits<T>::kNumber,
                  .rows = rows,
                  .columns = columns,
                  .from = values_.data(),
                  .row_stride = columns,
                  .codes = codes_.data(),
                  .scales = scales_.data()};
  }

  cudaError_t Launch(cuda_emulation::Order order) { return RunQuantizeRows(arguments_, EmulatedLauncher(order)); }

  // Launches the kernel with the function, which reads every second row as the gate of the row before it if it is
  // gated, and the separate kernels with the same function. Returns whether the bits are the same.
  bool FoldsExactly(Activation activation, bool gated, cuda_emulation::Order order) {
    const int64_t columns = arguments_.columns, rows = gated ? arguments_.rows / 2 : arguments_.rows;
    const int64_t stride = gated ? 2 * columns : columns;
    const T* const gate = gated ? values_.data() + columns : nullptr;
    Rows<T> activated(typename Rows<T>::Layout{.tokens = rows, .channels = columns});
    ActivationArguments separate{.number = arguments_.number,
                                 .activation = activation,
                                 .images = 1,
                                 .tokens = rows,
                                 .channels = columns,
                                 .x = {.data = values_.data(), .image_stride = 0, .token_stride = stride},
                                 .y = activated.data()};
    if (gated) separate.gate = {.data = gate, .image_stride = 0, .token_stride = stride};
    EXPECT_EQ(RunActivation(separate, EmulatedLauncher(order)), cudaSuccess);
    QuantizeRowsRun expected(rows, columns, 0);
    expected.arguments_.from = activated.data();
    EXPECT_EQ(expected.Launch(order), cudaSuccess);
    QuantizeRowsRun folded(rows, columns, 0);
    folded.arguments_.from = values_.data();
    folded.arguments_.row_stride = stride;
    folded.arguments_.activates = true;
    folded.arguments_.activation = activation;
    folded.arguments_.gate = gate;
    folded.arguments_.gate_stride = gated ? stride : 0;
    EXPECT_EQ(folded.Launch(order), cudaSuccess);
    return folded.codes_ == expected.codes_ &&
           std::equal(folded.scales_.begin(), folded.scales_.end(), expected.scales_.begin(),
                      [](float a, float b) { return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b); });
  }

  // Whether every code and scale has the bits of the definition.
  bool IsExact() const {
    const auto columns = static_cast<size_t>(arguments_.columns);
    std::vector<float> row(columns);
    std::vector<uint8_t> codes(columns);
    for (int64_t number = 0; number < arguments_.rows; ++number) {
      for (size_t i = 0; i < columns; ++i) {
        row[i] = static_cast<float>(values_(0, number, static_cast<int64_t>(i)));
      }
      float scale = 0;
      ReferenceQuantizeActivations(row.data(), arguments_.columns, codes.data(), &scale);
      const auto first = codes_.begin() + static_cast<std::ptrdiff_t>(static_cast<size_t>(number) * columns);
      if (!std::equal(codes.begin(), codes.end(), first)) return false;
      if (std::bit_cast<uint32_t>(scale) != std::bit_cast<uint32_t>(scales_[static_cast<size_t>(number)])) return false;
    }
    return true;
  }

 private:
  Rows<T> values_;
  std::vector<uint8_t> codes_;
  std::vector<float> scales_;
  QuantizeRowsArguments arguments_;
};

}  // namespace tessera::kernels::cuda
