// Runs the kernel of kernels/cuda/residual_norm.cuh on the host and compares it with its definition in double
// precision.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <vector>

#include "kernels/cuda/residual_norm.cuh"
#include "kernels/quantized/quant_rows.h"
#include "tests/support/cuda_emulation/kernel_runs.h"

namespace tessera {

// The scaling after the norm: a factor and an offset per image, a factor and an offset shared by all images, or a
// factor alone.
enum class Scaling { kNone, kModulate, kAffine, kWeight };

// Which optional parts are passed to the kernel, named as in the operators of kernels/ops.h.
struct NormParts {
  bool y = false, gate = false;
  kernels::cuda::NormKind norm = kernels::cuda::NormKind::kLayer;
  Scaling then = Scaling::kNone;
  double mean = 0.3;  // of x
};

template <typename T>
class ResidualNormRun final {
 public:
  using Layout = typename Rows<T>::Layout;

  ResidualNormRun(const Layout& layout, const NormParts& parts, unsigned seed)
      : parts_(parts),
        random_(seed),
        x_(layout, parts.mean, 1, random_),
        y_(layout, 0, 1, random_),
        gate_(Vectors(layout, layout.images), 0.5, 1, random_),
        factor_(Vectors(layout, parts.then == Scaling::kModulate ? layout.images : 1), 0.5, 1, random_),
        offset_(Vectors(layout, parts.then == Scaling::kModulate ? layout.images : 1), 0, 1, random_),
        sum_(Dense(layout)),
        normalised_(Dense(layout)) {}

  cudaError_t Launch(cuda_emulation::Order order) {
    return kernels::cuda::RunResidualNorm(Arguments(), EmulatedLauncher(order));
  }

  // Launches the kernel that quantizes the norm. Returns whether the sum has the bits of the last Launch, and the codes
  // and scales have those of its norm; if `multiplied`, of its norm times the gates, rounded.
  bool QuantizesExactly(cuda_emulation::Order order, bool multiplied = false) {
    const Layout& layout = x_.layout();
    const int64_t rows = layout.images * layout.tokens;
    std::vector<uint8_t> codes(static_cast<size_t>(rows * layout.channels), 0xff);
    std::vector<float> scales(static_cast<size_t>(rows), -1);
    const Rows<T> sum = sum_;
    kernels::cuda::ResidualNormArguments arguments = Arguments();
    arguments.normalised = nullptr;
    if (multiplied) arguments.multiplier = gate_.ImageView();
    arguments.codes = codes.data();
    arguments.scales = scales.data();
    EXPECT_EQ(kernels::cuda::RunResidualNorm(arguments, EmulatedLauncher(order)), cudaSuccess);
    bool exact = sum_.SameBits(sum);
    std::vector<float> row(static_cast<size_t>(layout.channels));
    std::vector<uint8_t> expected(row.size());
    for (int64_t number = 0; number < rows; ++number) {
      const int64_t image = number / layout.tokens, token = number % layout.tokens;
      for (int64_t c = 0; c < layout.channels; ++c) {
        double value = normalised_(image, token, c);
        if (multiplied) value = NumberTraits<T>::Value(NumberTraits<T>::From(value * gate_(image, 0, c)));
        row[static_cast<size_t>(c)] = static_cast<float>(value);
      }
      float scale = 0;
      kernels::ReferenceQuantizeActivations(row.data(), layout.channels, expected.data(), &scale);
      exact = exact && scale == scales[static_cast<size_t>(number)] &&
              std::equal(expected.begin(), expected.end(), codes.begin() + number * layout.channels);
    }
    return exact;
  }

  // Returns the largest error, in units of the tolerance.
  double Worst() const {
    Errors<T> errors;
    const Layout& layout = x_.layout();
    for (int64_t image = 0; image < layout.images; ++image) {
      for (int64_t token = 0; token < layout.tokens; ++token) AddRow(image, token, errors);
    }
    return errors.worst();
  }
  bool SameBits(const ResidualNormRun& other) const {
    return sum_.SameBits(other.sum_) && normalised_.SameBits(other.normalised_);
  }

 private:
  static constexpr double kEps = 1e-6;

  kernels::cuda::ResidualNormArguments Arguments() {
    const auto vectors = [&](Rows<T>& rows) -> kernels::cuda::PerImage {
      return {rows.data(), rows.layout().images == 1 && parts_.then != Scaling::kModulate ? 0 : rows.image_stride()};
    };
    const Layout& layout = x_.layout();
    kernels::cuda::ResidualNormArguments arguments{.number = NumberTraits<T>::kNumber,
                                                   .images = layout.images,
                                                   .tokens = layout.tokens,
                                                   .channels = layout.channels,
                                                   .x = x_.View(),
                                                   .norm = parts_.norm,
                                                   .eps = kEps};
    if (parts_.y) arguments.y = y_.View();
    if (parts_.gate) arguments.gate = gate_.ImageView();
    if (parts_.then != Scaling::kNone) arguments.factor = vectors(factor_);
    if (HasOffset()) arguments.offset = vectors(offset_);
    arguments.factor_from_one = parts_.then == Scaling::kModulate;
    if (parts_.y) arguments.sum = sum_.data();
    if (parts_.norm != kernels::cuda::NormKind::kNone) arguments.normalised = normalised_.data();
    return arguments;
  }

  static Layout Dense(const Layout& layout) {
    return {.images = layout.images, .tokens = layout.tokens, .channels = layout.channels};
  }
  // Returns the layout of one modulation vector in a tensor that also holds others.
  static Layout Vectors(const Layout& layout, int64_t images) {
    return {.images = images, .tokens = 1, .channels = layout.channels, .gap = layout.gap * 2, .offset = layout.offset};
  }
  bool HasOffset() const { return parts_.then == Scaling::kModulate || parts_.then == Scaling::kAffine; }

  void AddRow(int64_t image, int64_t token, Errors<T>& errors) const {
    const int64_t channels = x_.layout().channels;
    std::vector<double> row;  // the sum as the kernel returns it
    for (int64_t c = 0; c < channels; ++c) {
      row.push_back(x_(image, token, c));
      if (!parts_.y) continue;
      const double added = (parts_.gate ? gate_(image, 0, c) : 1) * y_(image, token, c);
      errors.Add(sum_(image, token, c), row.back() + added, std::abs(row.back()) + std::abs(added));
      row.back() = sum_(image, token, c);
    }
    if (parts_.norm == kernels::cuda::NormKind::kNone) return;
    double mean = 0, squares = 0;
    if (parts_.norm == kernels::cuda::NormKind::kLayer) {
      for (const double x : row) mean += x / static_cast<double>(channels);
    }
    for (const double x : row) squares += (x - mean) * (x - mean);
    const double deviation = std::sqrt(squares / static_cast<double>(channels) + kEps);
    const int64_t vector = parts_.then == Scaling::kModulate ? image : 0;
    for (int64_t c = 0; c < channels; ++c) {
      double factor = 1, offset = 0;
      if (parts_.then == Scaling::kModulate) factor += factor_(vector, 0, c);
      if (parts_.then == Scaling::kAffine || parts_.then == Scaling::kWeight) factor = factor_(vector, 0, c);
      if (HasOffset()) offset = offset_(vector, 0, c);
      const double x = row[static_cast<size_t>(c)];
      // The mean counts as a term, too: a row far from zero loses digits in the difference.
      const double terms = (std::abs(x) + std::abs(mean)) / deviation * std::abs(factor) + std::abs(offset);
      errors.Add(normalised_(image, token, c), (x - mean) / deviation * factor + offset, terms);
    }
  }

  const NormParts parts_;
  std::mt19937 random_;
  Rows<T> x_, y_, gate_, factor_, offset_;
  Rows<T> sum_, normalised_;
};

}  // namespace tessera
