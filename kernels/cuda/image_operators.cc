#include "kernels/cuda/channel_affine.h"
#include "kernels/cuda/group_moments.h"
#include "kernels/cuda/on_device.h"
#include "kernels/cuda/operators.h"
#include "kernels/cuda/redispatch.h"
#include "kernels/cuda/tensor_views.h"

namespace tessera::kernels::cuda {
namespace {

at::ScalarType WideType(const at::Tensor& x) { return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat; }

std::optional<ConstPlanes> ViewPlanes(const at::Tensor& x) {
  if (x.dim() != 4 || (x.size(3) > 1 && x.stride(3) != 1) || (x.size(2) > 1 && x.stride(2) != x.size(3))) {
    return std::nullopt;
  }
  return ConstPlanes{.data = x.const_data_ptr(),
                     .images = x.size(0),
                     .channels = x.size(1),
                     .plane = x.size(2) * x.size(3),
                     .image_stride = x.stride(0),
                     .channel_stride = x.stride(1)};
}

std::optional<ConstPixels> ViewPixels(const at::Tensor& x) {
  if (x.dim() != 4 || (x.size(1) > 1 && x.stride(1) != 1) ||
      (x.size(2) > 1 && x.stride(2) != x.size(3) * x.stride(3))) {
    return std::nullopt;
  }
  return ConstPixels{.data = x.const_data_ptr(),
                     .images = x.size(0),
                     .pixels = x.size(2) * x.size(3),
                     .channels = x.size(1),
                     .image_stride = x.stride(0),
                     .pixel_stride = x.stride(3)};
}

// Shared by both memory formats of an image.
template <typename Arguments, typename View>
at::Tensor AffineOf(Number number, const View& view, const at::Tensor& x, const at::Tensor& factor,
                    const at::Tensor& offset, bool silu, at::MemoryFormat format, const char* name) {
  at::Tensor y = at::empty(x.sizes(), x.options(), format);
  const Arguments arguments{.number = number,
                            .x = view,
                            .factor = factor.const_data_ptr(),
                            .offset = offset.const_data_ptr(),
                            .silu = silu,
                            .y = y.mutable_data_ptr()};
  OnDeviceOf(x, name, [&](cudaStream_t stream) { return LaunchChannelAffine(arguments, stream); });
  return y;
}

template <typename Arguments, typename View>
std::tuple<at::Tensor, at::Tensor> MomentsOf(Number number, const View& view, const at::Tensor& x, int64_t groups,
                                             int64_t slice_count, const char* name) {
  const at::TensorOptions wide = x.options().dtype(at::kDouble);
  at::Tensor means = at::empty({x.size(0), groups}, wide), squares = at::empty({x.size(0), groups}, wide);
  at::Tensor slices = at::empty({2, x.size(0), groups, slice_count}, wide);
  const Arguments arguments{.number = number,
                            .x = view,
                            .groups = groups,
                            .slice_means = slices[0].mutable_data_ptr<double>(),
                            .slice_squares = slices[1].mutable_data_ptr<double>(),
                            .means = means.mutable_data_ptr<double>(),
                            .squares = squares.mutable_data_ptr<double>()};
  OnDeviceOf(x, name, [&](cudaStream_t stream) { return LaunchGroupMoments(arguments, stream); });
  return {means, squares};
}

}  // namespace

at::Tensor ChannelAffine(const at::Tensor& x, const at::Tensor& factor, const at::Tensor& offset, bool silu) {
  constexpr char kName[] = "tessera::channel_affine";
  const auto number = ToNumber(x.scalar_type());
  bool fits = number.has_value();
  for (const at::Tensor& vectors : {factor, offset}) {
    fits = fits && vectors.scalar_type() == WideType(x) && vectors.device() == x.device() && vectors.is_contiguous() &&
           vectors.sizes() == x.sizes().slice(0, 2);
  }
  if (const auto planes = fits ? ViewPlanes(x) : std::nullopt) {
    return AffineOf<ChannelAffineArguments>(*number, *planes, x, factor, offset, silu, at::MemoryFormat::Contiguous,
                                            kName);
  }
  if (const auto pixels = fits ? ViewPixels(x) : std::nullopt) {
    return AffineOf<PixelAffineArguments>(*number, *pixels, x, factor, offset, silu, at::MemoryFormat::ChannelsLast,
                                          kName);
  }
  return ReferenceOf<ChannelAffine>::Call(kName, x, factor, offset, silu);
}

std::tuple<at::Tensor, at::Tensor> GroupMoments(const at::Tensor& x, int64_t groups) {
  constexpr char kName[] = "tessera::group_moments";
  const auto number = ToNumber(x.scalar_type());
  const bool fits = number.has_value() && x.numel() > 0 && x.dim() == 4 && x.size(1) % groups == 0;
  if (const auto planes = fits ? ViewPlanes(x) : std::nullopt) {
    return MomentsOf<GroupMomentsArguments>(*number, *planes, x, groups, MomentSlices(*planes, groups), kName);
  }
  if (const auto pixels = fits ? ViewPixels(x) : std::nullopt; pixels && pixels->channels <= kMostMomentChannels) {
    return MomentsOf<PixelMomentsArguments>(*number, *pixels, x, groups, PixelMomentSlices(*pixels), kName);
  }
  return ReferenceOf<GroupMoments>::Call(kName, x, groups);
}

}  // namespace tessera::kernels::cuda
