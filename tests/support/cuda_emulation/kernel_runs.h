// Provides tools for tests of kernels: memory in a device's dtype, launches on the host, and the tolerance against a
// definition in double precision.
#pragma once

#include <cuda_bf16.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "kernels/cuda/launch.h"
#include "tests/support/cuda_emulation/cuda_emulation.h"

namespace tessera {

// Launches kernels on the host with the interface of kernels/cuda/stream_launcher.cuh.
class EmulatedLauncher final {
 public:
  explicit EmulatedLauncher(cuda_emulation::Order order) : order_(order) {}

  template <typename Arguments>
  cudaError_t operator()(void (*kernel)(Arguments), const kernels::cuda::LaunchShape& shape,
                         const Arguments& arguments) const {
    cuda_emulation::RunKernel(order_, {shape.blocks, shape.blocks_y, 1}, shape.threads, shape.shared_bytes,
                              [&] { kernel(arguments); });
    return cudaSuccess;
  }

 private:
  const cuda_emulation::Order order_;
};

inline constexpr cuda_emulation::Order kOrders[] = {cuda_emulation::Order::kAscending,
                                                    cuda_emulation::Order::kDescending};
inline constexpr cuda_emulation::Order kOtherOrders[] = {cuda_emulation::Order::kDescending,
                                                         cuda_emulation::Order::kRandom};

// The dtype of a kernel: its name, its conversions, and the tolerance of its results.
template <typename T>
struct NumberTraits;

template <>
struct NumberTraits<__nv_bfloat16> {
  static constexpr kernels::cuda::Number kNumber = kernels::cuda::Number::kBf16;
  static __nv_bfloat16 From(double x) { return __float2bfloat16_rn(static_cast<float>(x)); }
  static double Value(__nv_bfloat16 x) { return __bfloat162float(x); }
  // Returns one unit in the last of 8 bits, plus the rounding of fp32 in the sum of the terms.
  static double Tolerance(double expected, double terms) {
    return std::max(std::ldexp(1.0, std::ilogb(expected == 0 ? 1e-30 : expected) - 7), 1e-30) + 2e-6 * terms;
  }
};

template <>
struct NumberTraits<float> {
  static constexpr kernels::cuda::Number kNumber = kernels::cuda::Number::kFloat;
  static float From(double x) { return static_cast<float>(x); }
  static double Value(float x) { return x; }
  static double Tolerance(double expected, double terms) { return 2e-6 * std::max(std::abs(expected), terms); }
};

template <>
struct NumberTraits<double> {
  static constexpr kernels::cuda::Number kNumber = kernels::cuda::Number::kDouble;
  static double From(double x) { return x; }
  static double Value(double x) { return x; }
  static double Tolerance(double expected, double terms) { return 1e-13 * std::max(std::abs(expected), terms); }
};

using KernelNumbers = ::testing::Types<__nv_bfloat16, float, double>;

// Rows [images, tokens, channels] in memory that ends with the last row. NaNs fill the space between rows and before
// the first, so that a kernel that reads them produces NaN.
template <typename T>
class Rows final {
 public:
  struct Layout {
    int64_t images = 1, tokens = 1, channels = 0;
    int64_t gap = 0;     // numbers between two rows
    int64_t offset = 0;  // numbers before the first
    int64_t image_gap = 0;
  };

  explicit Rows(const Layout& layout)
      : layout_(layout),
        memory_(static_cast<size_t>(layout.images * layout.tokens == 0
                                        ? layout.offset
                                        : At(layout.images - 1, layout.tokens - 1, 0) + layout.channels),
                NumberTraits<T>::From(std::numeric_limits<double>::quiet_NaN())) {}

  // Fills the rows with normally distributed numbers around `mean`.
  Rows(const Layout& layout, double mean, double deviation, std::mt19937& random) : Rows(layout) {
    std::normal_distribution<double> normal(mean, deviation);
    for (int64_t image = 0; image < layout.images; ++image) {
      for (int64_t token = 0; token < layout.tokens; ++token) {
        for (int64_t channel = 0; channel < layout.channels; ++channel) {
          memory_[static_cast<size_t>(At(image, token, channel))] = NumberTraits<T>::From(normal(random));
        }
      }
    }
  }

  double operator()(int64_t image, int64_t token, int64_t channel) const {
    return NumberTraits<T>::Value(memory_[static_cast<size_t>(At(image, token, channel))]);
  }
  int64_t token_stride() const { return layout_.channels + layout_.gap; }
  int64_t image_stride() const { return layout_.tokens * token_stride() + layout_.image_gap; }
  kernels::cuda::ConstRows View() const { return {memory_.data() + layout_.offset, image_stride(), token_stride()}; }
  kernels::cuda::PerImage ImageView() const { return {memory_.data() + layout_.offset, image_stride()}; }
  T* data() { return memory_.data() + layout_.offset; }
  const Layout& layout() const { return layout_; }
  bool SameBits(const Rows& other) const {
    return memory_.size() == other.memory_.size() &&
           (memory_.empty() || std::memcmp(memory_.data(), other.memory_.data(), memory_.size() * sizeof(T)) == 0);
  }

 private:
  int64_t At(int64_t image, int64_t token, int64_t channel) const {
    return layout_.offset + image * image_stride() + token * token_stride() + channel;
  }

  const Layout layout_;
  std::vector<T> memory_;
};

// The largest error of all results so far, in units of the tolerance.
template <typename T>
class Errors final {
 public:
  // `terms` is the sum of the absolute values of the terms of the expected sum.
  void Add(double actual, double expected, double terms) {
    const double error = std::abs(actual - expected) / NumberTraits<T>::Tolerance(expected, terms);
    if (!(error <= worst_)) worst_ = std::isnan(error) ? std::numeric_limits<double>::infinity() : error;
  }
  double worst() const { return worst_; }

 private:
  double worst_ = 0;
};

}  // namespace tessera
