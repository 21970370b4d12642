// Runs the kernel of kernels/cuda/heads.cuh on the host and compares it with its definition in double precision.
#pragma once

#include <cmath>
#include <vector>

#include "kernels/cuda/heads.cuh"
#include "tests/support/cuda_emulation/kernel_runs.h"

namespace tessera {

enum class HeadNormKind { kNone, kRootMeanSquare, kLayer };
// Where the parts are written: each one dense, or all interleaved in the order in which ranks send them to each other:
// [rank, token, part, image, head of the rank, channel].
enum class HeadsPlace { kDense, kForRanks };

struct HeadsCase {
  int64_t images = 1, tokens = 1;
  int ranks = 1, heads = 1;  // heads: per rank
  int head_dim = 64;
  int parts = 3;
  HeadNormKind norm = HeadNormKind::kRootMeanSquare;
  bool turns = true;
  HeadsPlace place = HeadsPlace::kDense;
  int64_t gap = 0, offset = 0;  // numbers between the rows of the projection, and before the first
};

template <typename T>
class HeadsRun final {
 public:
  using W = kernels::cuda::WideOf<T>;

  HeadsRun(const HeadsCase& heads_case, unsigned seed)
      : c_(heads_case),
        random_(seed),
        packed_({.images = c_.images,
                 .tokens = c_.tokens,
                 .channels = int64_t{c_.parts} * c_.ranks * c_.heads * c_.head_dim,
                 .gap = c_.gap,
                 .offset = c_.offset},
                0.2, 1, random_),
        weights_({.images = c_.parts, .channels = c_.head_dim, .gap = -c_.head_dim % 8 + 8}, 1, 0.3, random_),
        biases_({.images = c_.parts, .channels = c_.head_dim, .gap = -c_.head_dim % 8 + 8}, 0, 0.3, random_),
        out_(static_cast<size_t>(c_.images * c_.tokens * c_.parts * c_.ranks * c_.heads * c_.head_dim) + kAfter,
             Unwritten()) {
    std::uniform_real_distribution<double> angles(-3, 3);
    for (int64_t i = 0; i < c_.tokens * (c_.head_dim / 2); ++i) {
      const double angle = angles(random_);
      cos_.push_back(static_cast<W>(std::cos(angle)));
      sin_.push_back(static_cast<W>(std::sin(angle)));
    }
  }

  cudaError_t Launch(cuda_emulation::Order order) {
    kernels::cuda::HeadsArguments arguments{.number = NumberTraits<T>::kNumber,
                                            .images = c_.images,
                                            .tokens = c_.tokens,
                                            .head_dim = c_.head_dim,
                                            .packed = packed_.View(),
                                            .part_count = c_.parts,
                                            .cos = c_.turns ? cos_.data() : nullptr,
                                            .sin = c_.turns ? sin_.data() : nullptr};
    for (int p = 0; p < c_.parts; ++p) {
      const Strides strides = StridesOf(p);
      arguments.parts[p] = {.data = out_.data() + strides.begin,
                            .image_stride = strides.image,
                            .token_stride = strides.token,
                            .group_stride = strides.rank,
                            .head_stride = c_.head_dim,
                            .groups = c_.ranks,
                            .heads = c_.heads,
                            .weight = Norm(p) != HeadNormKind::kNone ? VectorOf(weights_, p) : nullptr,
                            .bias = Norm(p) == HeadNormKind::kLayer ? VectorOf(biases_, p) : nullptr,
                            .eps = kEps,
                            .turns = Turns(p)};
    }
    return kernels::cuda::RunHeads(arguments, EmulatedLauncher(order));
  }

  // Returns the largest error, in units of the tolerance. Infinite if an expected number is not written, or a number
  // outside the result is written.
  double Worst() const {
    Errors<T> errors;
    for (int64_t image = 0; image < c_.images; ++image) {
      for (int64_t token = 0; token < c_.tokens; ++token) {
        for (int p = 0; p < c_.parts; ++p) {
          for (int head = 0; head < c_.ranks * c_.heads; ++head) AddHead(image, token, p, head, errors);
        }
      }
    }
    for (size_t i = out_.size() - kAfter; i < out_.size(); ++i) {
      if (!std::isnan(NumberTraits<T>::Value(out_[i]))) return std::numeric_limits<double>::infinity();
    }
    return errors.worst();
  }
  bool SameBits(const HeadsRun& other) const {
    return std::memcmp(out_.data(), other.out_.data(), out_.size() * sizeof(T)) == 0;
  }

 private:
  static constexpr double kEps = 1e-6;
  static constexpr size_t kAfter = 16;
  static T Unwritten() { return NumberTraits<T>::From(std::numeric_limits<double>::quiet_NaN()); }

  struct Strides {
    int64_t begin, image, token, rank;
  };
  Strides StridesOf(int part) const {
    const int64_t of_rank = int64_t{c_.heads} * c_.head_dim;
    if (c_.place == HeadsPlace::kDense) {
      const int64_t token = c_.ranks * of_rank, image = c_.tokens * token;
      return {.begin = part * c_.images * image, .image = image, .token = token, .rank = of_rank};
    }
    const int64_t of_part = c_.images * of_rank, token = c_.parts * of_part;
    return {.begin = part * of_part, .image = of_rank, .token = token, .rank = c_.tokens * token};
  }
  static const T* VectorOf(const Rows<T>& vectors, int part) {
    return static_cast<const T*>(vectors.View().data) + part * vectors.image_stride();
  }
  // With three parts, values have neither a norm nor a rotation. A single part has both.
  HeadNormKind Norm(int part) const { return part < 2 ? c_.norm : HeadNormKind::kNone; }
  bool Turns(int part) const { return c_.turns && part < 2; }

  void AddHead(int64_t image, int64_t token, int part, int head, Errors<T>& errors) const {
    const int d = c_.head_dim;
    std::vector<double> x, terms;
    for (int i = 0; i < d; ++i)
      x.push_back(packed_(image, token, (int64_t{part} * c_.ranks * c_.heads + head) * d + i));
    double mean = 0, squares = 0;
    if (Norm(part) == HeadNormKind::kLayer) {
      for (const double value : x) mean += value / d;
    }
    for (const double value : x) squares += (value - mean) * (value - mean);
    const double deviation = std::sqrt(squares / d + kEps);
    for (int i = 0; i < d; ++i) {
      terms.push_back(std::abs(x[static_cast<size_t>(i)]));
      if (Norm(part) == HeadNormKind::kNone) continue;
      double& value = x[static_cast<size_t>(i)];
      const double weight = weights_(part, 0, i), bias = Norm(part) == HeadNormKind::kLayer ? biases_(part, 0, i) : 0;
      terms.back() = (std::abs(value) + std::abs(mean)) / deviation * std::abs(weight) + std::abs(bias);
      value = (value - mean) / deviation * weight + bias;
    }
    const Strides strides = StridesOf(part);
    const T* out = out_.data() + strides.begin + image * strides.image + token * strides.token +
                   head / c_.heads * strides.rank + int64_t{head % c_.heads} * d;
    for (int i = 0; i < d; ++i) {
      double expected = x[static_cast<size_t>(i)], of_terms = terms[static_cast<size_t>(i)];
      if (Turns(part)) {
        const auto angle = static_cast<size_t>(token * (d / 2) + i / 2);
        const double cos = cos_[angle], sin = sin_[angle], other = x[static_cast<size_t>(i ^ 1)];
        expected = expected * cos + (i % 2 == 0 ? -sin : sin) * other;
        of_terms = of_terms * std::abs(cos) + terms[static_cast<size_t>(i ^ 1)] * std::abs(sin);
      }
      errors.Add(NumberTraits<T>::Value(out[i]), expected, of_terms);
    }
  }

  const HeadsCase c_;
  std::mt19937 random_;
  const Rows<T> packed_, weights_, biases_;
  std::vector<W> cos_, sin_;
  std::vector<T> out_;
};

}  // namespace tessera
