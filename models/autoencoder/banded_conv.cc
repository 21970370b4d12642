#include "models/autoencoder/banded_conv.h"

#include <c10/util/irange.h>

#include <algorithm>
#include <vector>

#include "base/macros/planted.h"
#include "kernels/ops.h"
#include "models/precision.h"
#include "parallel/functional.h"

namespace tessera::models {
namespace {

constexpr double kEpsilon = 1e-6;

// Returns the number of rows per band if one row takes `row_bytes`.
int64_t BandRows(int64_t row_bytes, int64_t band_bytes) {
  return std::max<int64_t>(1, band_bytes / std::max<int64_t>(1, row_bytes));
}

std::vector<int64_t> WeightShape(int64_t in, int64_t out, const ConvOptions& options) {
  if (options.frames == 0) return {out, in, options.kernel, options.kernel};
  return {out, in, options.frames, options.kernel, options.kernel};
}

// The number, mean and sum of squared differences from the mean of a part of the values, [b, groups] in fp64.
struct Moments {
  double count = 0;
  at::Tensor mean, squares;

  // Chan et al., 1979.
  void Merge(const Moments& other) {
    if (other.count == 0) return;
    if (count == 0) {  // the sums below would give the same, bit for bit
      *this = other;
      return;
    }
    const double sum = count + other.count;
    const at::Tensor delta = other.mean - mean;
    mean = mean + delta * (other.count / sum);
    squares = squares + other.squares + delta * delta * (count * other.count / sum);
    count = sum;
  }
};

// Merges the ranks' moments in rank order. A row of the image has `row_values` values per group.
Moments OfAllRanks(const Moments& own, const parallel::ImageRows& image, double row_values) {
  if (image.rows().size() == 1) return own;
  const std::vector<int64_t> one_each(image.rows().size(), 1);
  const at::Tensor parts =
      parallel::GatherDim(at::stack({own.mean, own.squares}).unsqueeze(0), 0, one_each, image.group());
  Moments all;
  for (const size_t r : c10::irange(image.rows().size())) {
    const at::Tensor part = parts[static_cast<int64_t>(r)];
    all.Merge({.count = row_values * static_cast<double>(image.rows()[r]), .mean = part[0], .squares = part[1]});
  }
  return all;
}

}  // namespace

at::Tensor InOrderOf(const at::Tensor& image) {
  return image.is_cpu() ? image : image.contiguous(at::MemoryFormat::ChannelsLast);
}

GroupNorm::GroupNorm(const ParamScope& scope, int64_t channels, int64_t groups)
    : groups_(groups), weight_(scope.Add("weight", {channels})), bias_(scope.Add("bias", {channels})) {}

ImageNorm::OfRows GroupNorm::Measure(const at::Tensor& x, const parallel::ImageRows& image, int64_t band_bytes) const {
  const int64_t b = x.size(0), c = x.size(1), h = x.size(2), w = x.size(3);
  const at::ScalarType accumulation = AccumulationType(x.scalar_type());
  const int64_t band = BandRows(b * c * w * static_cast<int64_t>(c10::elementSize(accumulation)), band_bytes);
  const int64_t group_channels = c / groups_;
  const auto row_values = static_cast<double>(group_channels * w);
  Moments own;
  for (int64_t begin = 0; begin < h; begin += band) {
    const int64_t end = std::min(h, begin + band);
    const auto [mean, squares] = kernels::GroupMoments(x.slice(2, begin, end), groups_);
    own.Merge({.count = row_values * static_cast<double>(end - begin), .mean = mean, .squares = squares});
  }
  if (own.count == 0) own.mean = own.squares = at::zeros({b, groups_}, x.options().dtype(at::kDouble));
  const Moments all = base::Planted("group_norm_local_rows") ? own : OfAllRanks(own, image, row_values);
  const at::Tensor inverse = at::rsqrt(all.squares / all.count + kEpsilon);  // [b, groups]
  const auto per_channel = [&](const at::Tensor& groups) { return groups.repeat_interleave(c / groups_, 1); };
  // Normalising is y = x · factor + offset, both [b, c].
  const at::Tensor factor = per_channel(inverse) * weight_.to(at::kDouble);
  const at::Tensor offset = bias_.to(at::kDouble) - per_channel(all.mean) * factor;
  return [factor = factor.to(accumulation), offset = offset.to(accumulation)](const at::Tensor& rows, bool silu) {
    return kernels::ChannelAffine(rows, factor, offset, silu);
  };
}

BandedConv::BandedConv(const ParamScope& scope, int64_t in, int64_t out, const ConvOptions& options)
    : kernel_(options.kernel),
      resample_(options.resample),
      weight_(scope.AddConvolution("weight", WeightShape(in, out, options))),
      bias_(scope.Add("bias", {out})) {}

parallel::ImageRows BandedConv::RowsAfter(const parallel::ImageRows& image) const {
  return resample_ == Resample::kUp ? image.Enlarged(2) : resample_ == Resample::kDown ? image.Reduced(2) : image;
}

at::Tensor BandedConv::Forward(const at::Tensor& x, const ImageNorm* norm, const parallel::ImageRows& image,
                               int64_t band_bytes) const {
  const int64_t up = resample_ == Resample::kUp ? 2 : 1, stride = resample_ == Resample::kDown ? 2 : 1;
  const int64_t before = stride == 2 ? 0 : kernel_ / 2, after = stride == 2 ? 1 : kernel_ / 2;
  const int64_t b = x.size(0), c = x.size(1), in_h = image.height() * up, in_w = x.size(3) * up;
  const int64_t out_begin = image.begin() * up / stride, out_end = image.end() * up / stride;
  const ImageNorm::OfRows normalise = norm ? norm->Measure(x, image, band_bytes) : nullptr;
  const parallel::RowWindow window = image.Widen(x, before, after);
  const int64_t accumulation_bytes = static_cast<int64_t>(c10::elementSize(AccumulationType(x.scalar_type())));
  const int64_t band = BandRows(b * c * in_w * stride * accumulation_bytes, band_bytes);
  TORCH_CHECK(image.group().size() == 1 || (image.begin() % stride == 0 && image.end() % stride == 0),
              "an odd number of rows to halve in ", image.rows());

  at::Tensor out;
  for (int64_t begin = out_begin; begin < out_end; begin += band) {
    const int64_t end = std::min(out_end, begin + band);
    // Rows of the (enlarged) input that the band reads; rows outside the image are zeros.
    const int64_t first = begin * stride - before, last = (end - 1) * stride - before + kernel_;
    const int64_t top = std::max<int64_t>(0, first), bottom = std::min(in_h, last);
    at::Tensor rows = window.Slice(top / up, (bottom + up - 1) / up);
    if (normalise) rows = normalise(rows, /*silu=*/true);
    const at::Tensor result =
        up == 2 ? kernels::UpsampledConv2d(rows, *weight_, bias_, begin - top / 2 * 2, end - begin)
                : kernels::Conv2d(rows, *weight_, bias_, stride, {top - first, last - bottom, before, after});
    if (end - begin == out_end - out_begin) return result;
    if (!out.defined()) {
      out = at::empty({b, weight_->size(0), out_end - out_begin, in_w / stride}, x.options(),
                      x.is_cpu() ? at::MemoryFormat::Contiguous : at::MemoryFormat::ChannelsLast);
    }
    out.slice(2, begin - out_begin, end - out_begin).copy_(result);
  }
  return out.defined() ? out : at::empty({b, weight_->size(0), 0, in_w / stride}, x.options());
}

}  // namespace tessera::models
