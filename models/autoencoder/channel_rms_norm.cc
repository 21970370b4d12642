#include "models/autoencoder/channel_rms_norm.h"

#include <algorithm>
#include <vector>

#include "kernels/ops.h"

namespace tessera::models {
namespace {

constexpr double kLeastNorm = 1e-12;
constexpr int64_t kCachedBytes = int64_t{512} << 10;

std::vector<int64_t> ShapeOfGamma(int64_t channels, int64_t trailing) {
  std::vector<int64_t> shape(static_cast<size_t>(1 + trailing), 1);
  shape[0] = channels;
  return shape;
}

// The operator normalises the last dimension. An epsilon inside the root in place of the lower bound of the norm gives
// the same result unless the norm is near the bound, and 0 for a pixel of zeros.
at::Tensor OfPixels(const at::Tensor& rows, const at::Tensor& gamma, bool silu) {
  const double eps = kLeastNorm * kLeastNorm / static_cast<double>(rows.size(1));
  at::Tensor pixels = kernels::RmsNorm(rows.permute({0, 2, 3, 1}), gamma, eps);  // [b, rows, w, c]
  if (silu) pixels = kernels::Silu(pixels);
  return pixels.permute({0, 3, 1, 2});
}

}  // namespace

ChannelRmsNorm::ChannelRmsNorm(const ParamScope& scope, int64_t channels, int64_t trailing)
    : gamma_(scope.Add("gamma", ShapeOfGamma(channels, trailing))) {}

ImageNorm::OfRows ChannelRmsNorm::Measure(const at::Tensor& /*x*/, const parallel::ImageRows& /*image*/,
                                          int64_t /*band_bytes*/) const {
  return [gamma = gamma_.flatten()](const at::Tensor& rows, bool silu) {
    if (!rows.is_cpu()) return OfPixels(rows, gamma, silu);
    // In main memory each channel is a plane. A few rows at a time change their order within the caches.
    const int64_t row_bytes = rows.size(0) * rows.size(1) * rows.size(3) * rows.element_size();
    const int64_t step = std::max<int64_t>(1, kCachedBytes / std::max<int64_t>(1, row_bytes));
    at::Tensor out = at::empty(rows.sizes(), rows.options());
    for (int64_t begin = 0; begin < rows.size(2); begin += step) {
      const int64_t end = std::min(rows.size(2), begin + step);
      out.slice(2, begin, end).copy_(OfPixels(rows.slice(2, begin, end), gamma, silu));
    }
    return out;
  };
}

}  // namespace tessera::models
