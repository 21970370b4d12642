#include "models/autoencoder/banded_conv.h"

#include <algorithm>

#include "models/precision.h"

namespace tessera {
namespace {

constexpr double kEpsilon = 1e-6;

// Rows of a band of which one row takes `row_bytes`.
int64_t BandRows(int64_t row_bytes, int64_t band_bytes) {
  return std::max<int64_t>(1, band_bytes / std::max<int64_t>(1, row_bytes));
}

}  // namespace

GroupNorm::GroupNorm(const ParamScope& scope, int64_t channels, int64_t groups)
    : groups_(groups), weight_(scope.Add("weight", {channels})), bias_(scope.Add("bias", {channels})) {}

at::Tensor GroupNorm::Affine::Apply(const at::Tensor& x) const {
  return at::addcmul(offset, x.to(factor.scalar_type()), factor).to(x.scalar_type());
}

GroupNorm::Affine GroupNorm::Measure(const at::Tensor& x, int64_t band_bytes) const {
  const int64_t b = x.size(0), c = x.size(1), h = x.size(2), w = x.size(3);
  const at::ScalarType island = IslandType(x.scalar_type());
  const int64_t band = BandRows(b * c * w * static_cast<int64_t>(c10::elementSize(island)), band_bytes);
  // Means and sums of squared differences of the bands, merged in fp64 (Chan et al., 1979).
  at::Tensor mean, squares;  // [b, groups]
  double seen = 0;
  for (int64_t begin = 0; begin < h; begin += band) {
    const at::Tensor rows = x.slice(2, begin, std::min(h, begin + band)).reshape({b, groups_, -1}).to(island);
    const double count = static_cast<double>(rows.size(2));
    const auto [variance, band_mean_island] = at::var_mean(rows, at::IntArrayRef{2}, /*correction=*/0);
    const at::Tensor band_mean = band_mean_island.to(at::kDouble), band_squares = variance.to(at::kDouble) * count;
    if (seen == 0) {
      mean = band_mean;
      squares = band_squares;
    } else {
      const at::Tensor delta = band_mean - mean;
      mean = mean + delta * (count / (seen + count));
      squares = squares + band_squares + delta * delta * (seen * count / (seen + count));
    }
    seen += count;
  }
  const at::Tensor inverse = at::rsqrt(squares / seen + kEpsilon);  // [b, groups]
  const auto per_channel = [&](const at::Tensor& groups) { return groups.repeat_interleave(c / groups_, 1); };
  const at::Tensor factor = per_channel(inverse) * weight_.to(at::kDouble);
  const at::Tensor offset = bias_.to(at::kDouble) - per_channel(mean) * factor;
  return {.factor = factor.to(island).reshape({b, c, 1, 1}), .offset = offset.to(island).reshape({b, c, 1, 1})};
}

BandedConv::BandedConv(const ParamScope& scope, int64_t in, int64_t out, int64_t kernel, Resample resample)
    : kernel_(kernel),
      resample_(resample),
      weight_(scope.Add("weight", {out, in, kernel, kernel})),
      bias_(scope.Add("bias", {out})) {}

at::Tensor BandedConv::Forward(const at::Tensor& x, const GroupNorm* norm, int64_t band_bytes) const {
  const int64_t up = resample_ == Resample::kUp ? 2 : 1, stride = resample_ == Resample::kDown ? 2 : 1;
  const int64_t before = stride == 2 ? 0 : kernel_ / 2, after = stride == 2 ? 1 : kernel_ / 2;
  const int64_t b = x.size(0), c = x.size(1), in_h = x.size(2) * up, in_w = x.size(3) * up;
  const int64_t out_h = in_h / stride, out_w = in_w / stride;
  const std::optional<GroupNorm::Affine> affine = norm ? std::optional(norm->Measure(x, band_bytes)) : std::nullopt;
  const int64_t island_bytes = static_cast<int64_t>(c10::elementSize(IslandType(x.scalar_type())));
  const int64_t band = BandRows(b * c * in_w * stride * island_bytes, band_bytes);

  at::Tensor out;
  for (int64_t begin = 0; begin < out_h; begin += band) {
    const int64_t end = std::min(out_h, begin + band);
    // Rows of the (enlarged) input that the band reads; those outside the image are zeros.
    const int64_t first = begin * stride - before, last = (end - 1) * stride - before + kernel_;
    const int64_t top = std::max<int64_t>(0, first), bottom = std::min(in_h, last);
    at::Tensor rows = x.slice(2, top / up, (bottom + up - 1) / up);
    if (affine) rows = at::silu(affine->Apply(rows));
    if (up == 2) {
      rows = at::upsample_nearest2d(rows, {rows.size(2) * 2, in_w}).slice(2, top % 2, top % 2 + bottom - top);
    }
    const int64_t zeros_above = top - first, zeros_below = last - bottom;
    at::Tensor result;
    if (zeros_above == zeros_below && before == after) {
      result = at::conv2d(rows, weight_, bias_, stride, at::IntArrayRef{zeros_above, before});
    } else {
      rows = at::constant_pad_nd(rows, {before, after, zeros_above, zeros_below});
      result = at::conv2d(rows, weight_, bias_, stride);
    }
    if (end - begin == out_h) return result;
    if (!out.defined()) out = at::empty({b, weight_.size(0), out_h, out_w}, x.options());
    out.slice(2, begin, end).copy_(result);
  }
  return out;
}

}  // namespace tessera
