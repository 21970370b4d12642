// The operators of kernels/ops.h for images [b, c, h, w] on CUDA tensors, each by kernels of this folder. Arguments
// that these do not take (other types, rows of a plane that lie apart) take the reference.
#include <ATen/ATen.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <optional>
#include <tuple>

#include "kernels/cuda/channel_affine.h"
#include "kernels/cuda/group_moments.h"
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

at::Tensor ChannelAffine(const at::Tensor& x, const at::Tensor& factor, const at::Tensor& offset, bool silu) {
  constexpr char kName[] = "tessera::channel_affine";
  const auto number = NumberOf(x.scalar_type());
  const auto planes = ViewPlanes(x);
  bool fits = number.has_value() && planes.has_value();
  for (const at::Tensor& vectors : {factor, offset}) {
    fits = fits && vectors.scalar_type() == WideType(x) && vectors.device() == x.device() && vectors.is_contiguous() &&
           vectors.sizes() == x.sizes().slice(0, 2);
  }
  if (!fits) return ReferenceOf<ChannelAffine>::Call(kName, x, factor, offset, silu);
  at::Tensor y = at::empty(x.sizes(), x.options());
  const ChannelAffineArguments arguments{.number = *number,
                                         .x = *planes,
                                         .factor = factor.const_data_ptr(),
                                         .offset = offset.const_data_ptr(),
                                         .silu = silu,
                                         .y = y.mutable_data_ptr()};
  const c10::cuda::CUDAGuard device(x.device());
  CheckLaunch(LaunchChannelAffine(arguments, c10::cuda::getCurrentCUDAStream().stream()), kName);
  return y;
}

std::tuple<at::Tensor, at::Tensor> GroupMoments(const at::Tensor& x, int64_t groups) {
  constexpr char kName[] = "tessera::group_moments";
  const auto number = NumberOf(x.scalar_type());
  const auto planes = ViewPlanes(x);
  if (!number.has_value() || !planes.has_value() || x.numel() == 0 || planes->channels % groups != 0) {
    return ReferenceOf<GroupMoments>::Call(kName, x, groups);
  }
  const at::TensorOptions wide = x.options().dtype(at::kDouble);
  at::Tensor means = at::empty({x.size(0), groups}, wide), squares = at::empty({x.size(0), groups}, wide);
  at::Tensor slices = at::empty({2, x.size(0), groups, MomentSlices(*planes, groups)}, wide);
  const GroupMomentsArguments arguments{.number = *number,
                                        .x = *planes,
                                        .groups = groups,
                                        .slice_means = slices[0].mutable_data_ptr<double>(),
                                        .slice_squares = slices[1].mutable_data_ptr<double>(),
                                        .means = means.mutable_data_ptr<double>(),
                                        .squares = squares.mutable_data_ptr<double>()};
  const c10::cuda::CUDAGuard device(x.device());
  CheckLaunch(LaunchGroupMoments(arguments, c10::cuda::getCurrentCUDAStream().stream()), kName);
  return {means, squares};
}

}  // namespace

TORCH_LIBRARY_IMPL(tessera, CUDA, m) {
  m.impl("channel_affine", ChannelAffine);
  m.impl("group_moments", GroupMoments);
}

}  // namespace tessera::kernels::cuda
