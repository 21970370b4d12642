#include "models/autoencoder/channel_rms_norm.h"

#include <vector>

#include "kernels/ops.h"

namespace tessera::models {
namespace {

constexpr double kLeastNorm = 1e-12;

std::vector<int64_t> ShapeOfGamma(int64_t channels, int64_t trailing) {
  std::vector<int64_t> shape(static_cast<size_t>(1 + trailing), 1);
  shape[0] = channels;
  return shape;
}

}  // namespace

ChannelRmsNorm::ChannelRmsNorm(const ParamScope& scope, int64_t channels, int64_t trailing)
    : gamma_(scope.Add("gamma", ShapeOfGamma(channels, trailing))) {}

ImageNorm::OfRows ChannelRmsNorm::Measure(const at::Tensor& /*x*/, const parallel::ImageRows& /*image*/,
                                          int64_t /*band_bytes*/) const {
  // The operator normalises the last dimension. An epsilon inside the root in place of the lower bound of the norm
  // gives the same result unless the norm is near the bound, and 0 for a pixel of zeros.
  return [gamma = gamma_.flatten()](const at::Tensor& rows, bool silu) {
    const double eps = kLeastNorm * kLeastNorm / static_cast<double>(rows.size(1));
    at::Tensor pixels = kernels::RmsNorm(rows.permute({0, 2, 3, 1}), gamma, eps);  // [b, rows, w, c]
    if (silu) pixels = kernels::Silu(pixels);
    return pixels.permute({0, 3, 1, 2});
  };
}

}  // namespace tessera::models
