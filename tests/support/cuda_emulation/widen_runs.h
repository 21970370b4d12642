// Runs the kernel that widens quantized weights on random bytes.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "kernels/cuda/widen.cuh"
#include "kernels/quantized/quant_rows.h"
#include "tests/support/cuda_emulation/kernel_runs.h"

namespace tessera::kernels::cuda {

// A matrix of random bytes and its widened values in memory that ends with the last of them.
template <typename T>
class WidenRun final {
 public:
  WidenRun(QuantType type, int64_t rows, int64_t columns, int64_t scale_block, int64_t offset)
      : values_(typename Rows<T>::Layout{.tokens = rows, .channels = columns, .offset = offset}) {
    std::mt19937 random(static_cast<unsigned>(columns));
    std::normal_distribution<float> normal;
    const int64_t row_bytes = RowBytes(type, columns);
    for (int64_t i = 0; i < rows * row_bytes; ++i) bytes_.push_back(static_cast<std::byte>(random()));
    for (int64_t i = 0; i < rows * columns; ++i) scales_.push_back(normal(random));
    for (int i = 0; i < 16; ++i) table_.push_back(normal(random));
    rows_ = {.type = type,
             .bytes = bytes_.data(),
             .row_bytes = row_bytes,
             .columns = columns,
             .scales = scales_.data(),
             .scale_block = scale_block,
             .table = table_.data()};
    arguments_ = {.type = type,
                  .number = NumberTraits<T>::kNumber,
                  .rows = rows,
                  .columns = columns,
                  .bytes = reinterpret_cast<const uint8_t*>(bytes_.data()),
                  .row_bytes = row_bytes,
                  .scales = scales_.data(),
                  .scale_block = scale_block,
                  .table = table_.data(),
                  .to = values_.data()};
  }

  cudaError_t Launch(cuda_emulation::Order order) { return RunWiden(arguments_, EmulatedLauncher(order)); }

  // Whether every value is the definition's: the fp32 number, or rounded once to bf16.
  bool IsExact() const {
    const auto columns = static_cast<size_t>(arguments_.columns);
    std::vector<float> wide(columns);
    std::vector<uint16_t> narrow(columns);
    for (int64_t row = 0; row < arguments_.rows; ++row) {
      ReferenceWiden(RunOf(rows_, row, 0, arguments_.columns), wide.data());
      ReferenceWidenToBf16(RunOf(rows_, row, 0, arguments_.columns), narrow.data());
      for (size_t i = 0; i < columns; ++i) {
        const double value = values_(0, row, static_cast<int64_t>(i));
        const double expected = sizeof(T) == 2 ? std::bit_cast<float>(uint32_t{narrow[i]} << 16) : wide[i];
        if (!(value == expected || (std::isnan(value) && std::isnan(expected)))) return false;
      }
    }
    return true;
  }

 private:
  Rows<T> values_;
  std::vector<std::byte> bytes_;
  std::vector<float> scales_, table_;
  QuantRows rows_;
  WidenArguments arguments_;
};

}  // namespace tessera::kernels::cuda
