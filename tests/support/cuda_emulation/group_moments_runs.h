// Runs the kernels of kernels/cuda/group_moments.cuh on the host and compares them with their definition in double
// precision.
#pragma once

#include <cmath>
#include <vector>

#include "kernels/cuda/group_moments.cuh"
#include "tests/support/cuda_emulation/kernel_runs.h"

namespace tessera {

struct MomentsCase {
  int64_t images = 1, groups = 1, channels = 1;  // channels: per group
  int64_t plane = 64;
  int64_t gap = 0, offset = 0, image_gap = 0;
  double mean = 0.5;
};

// With kChannelsLast, `gap` numbers separate two pixels; otherwise they separate two planes.
template <typename T, bool kChannelsLast = false>
class GroupMomentsRun final {
 public:
  explicit GroupMomentsRun(const MomentsCase& moments_case)
      : c_(moments_case),
        random_(1),
        x_({.images = c_.images,
            .tokens = kChannelsLast ? c_.plane : c_.groups * c_.channels,
            .channels = kChannelsLast ? c_.groups * c_.channels : c_.plane,
            .gap = c_.gap,
            .offset = c_.offset,
            .image_gap = c_.image_gap},
           c_.mean, 2, random_),
        means_(static_cast<size_t>(c_.images * c_.groups), kUnwritten),
        squares_(means_) {}

  cudaError_t Launch(cuda_emulation::Order order) {
    const kernels::cuda::ConstRows rows = x_.View();
    if constexpr (kChannelsLast) {
      kernels::cuda::PixelMomentsArguments arguments{.number = NumberTraits<T>::kNumber,
                                                     .x = {.data = rows.data,
                                                           .images = c_.images,
                                                           .pixels = c_.plane,
                                                           .channels = c_.groups * c_.channels,
                                                           .image_stride = rows.image_stride,
                                                           .pixel_stride = rows.token_stride}};
      return Run(arguments, kernels::cuda::PixelMomentSlices(arguments.x), order);
    } else {
      kernels::cuda::GroupMomentsArguments arguments{.number = NumberTraits<T>::kNumber,
                                                     .x = {.data = rows.data,
                                                           .images = c_.images,
                                                           .channels = c_.groups * c_.channels,
                                                           .plane = c_.plane,
                                                           .image_stride = rows.image_stride,
                                                           .channel_stride = rows.token_stride}};
      return Run(arguments, kernels::cuda::MomentSlices(arguments.x, c_.groups), order);
    }
  }

  // Returns the largest error, in units of 2e-6 (fp64: 1e-13) of the deviation for means and of the expected value for
  // squares.
  double Worst() const {
    constexpr double kTolerance = std::is_same_v<T, double> ? 1e-13 : 2e-6;
    double worst = 0;
    for (int64_t image = 0; image < c_.images; ++image) {
      for (int64_t group = 0; group < c_.groups; ++group) {
        const auto [mean, squares] = Defined(image, group);
        const auto at = static_cast<size_t>(image * c_.groups + group);
        const double deviation = std::sqrt(squares / static_cast<double>(c_.channels * c_.plane)) + std::abs(mean);
        for (const double error :
             {std::abs(means_[at] - mean) / deviation, std::abs(squares_[at] - squares) / squares}) {
          if (!(error / kTolerance <= worst)) worst = std::isnan(error) && squares != 0 ? 1e9 : error / kTolerance;
        }
      }
    }
    return worst;
  }
  bool SameBits(const GroupMomentsRun& other) const { return means_ == other.means_ && squares_ == other.squares_; }
  const std::vector<double>& means() const { return means_; }
  const std::vector<double>& squares() const { return squares_; }

 private:
  static constexpr double kUnwritten = -1e300;

  template <typename Arguments>
  cudaError_t Run(Arguments& arguments, int64_t slices, cuda_emulation::Order order) {
    std::vector<double> slice_means(means_.size() * static_cast<size_t>(slices), kUnwritten),
        slice_squares(slice_means);
    arguments.groups = c_.groups;
    arguments.slice_means = slice_means.data();
    arguments.slice_squares = slice_squares.data();
    arguments.means = means_.data();
    arguments.squares = squares_.data();
    return kernels::cuda::RunGroupMoments(arguments, EmulatedLauncher(order));
  }

  double Value(int64_t image, int64_t channel, int64_t i) const {
    return kChannelsLast ? x_(image, i, channel) : x_(image, channel, i);
  }

  std::pair<double, double> Defined(int64_t image, int64_t group) const {
    double mean = 0, squares = 0;
    const auto each = [&](auto add) {
      for (int64_t channel = 0; channel < c_.channels; ++channel) {
        for (int64_t i = 0; i < c_.plane; ++i) add(Value(image, group * c_.channels + channel, i));
      }
    };
    each([&](double x) { mean += x; });
    mean /= static_cast<double>(c_.channels * c_.plane);
    each([&](double x) { squares += (x - mean) * (x - mean); });
    return {mean, squares};
  }

  const MomentsCase c_;
  std::mt19937 random_;
  const Rows<T> x_;
  std::vector<double> means_, squares_;
};

}  // namespace tessera
