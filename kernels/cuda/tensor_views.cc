#include "kernels/cuda/tensor_views.h"

namespace tessera::kernels::cuda {
namespace {

bool IsLike(const at::Tensor& other, const at::Tensor& x) {
  return other.scalar_type() == x.scalar_type() && other.device() == x.device();
}

bool LiesSideBySide(const at::Tensor& x) { return x.size(-1) <= 1 || x.stride(-1) == 1; }

}  // namespace

std::optional<Number> ToNumber(at::ScalarType type) {
  switch (type) {
    case at::kBFloat16:
      return Number::kBf16;
    case at::kFloat:
      return Number::kFloat;
    case at::kDouble:
      return Number::kDouble;
    default:
      return std::nullopt;
  }
}

std::optional<RowsView> ViewRows(const at::Tensor& x) {
  if (x.dim() == 0 || !LiesSideBySide(x)) return std::nullopt;
  RowsView view{.images = 1, .tokens = 1, .channels = x.size(-1), .rows = {.data = x.const_data_ptr()}};
  if (x.dim() == 2 || x.dim() == 3) {
    view.tokens = x.size(-2);
    view.rows.token_stride = x.stride(-2);
  }
  if (x.dim() == 3) {
    view.images = x.size(0);
    view.rows.image_stride = x.stride(0);
  }
  if (x.dim() > 3) {
    if (!x.is_contiguous()) return std::nullopt;
    view.tokens = view.channels == 0 ? 0 : x.numel() / view.channels;
    view.rows.token_stride = view.channels;
  }
  return view;
}

std::optional<PerImage> ViewPerImage(const at::Tensor& vectors, const at::Tensor& x, int64_t images, int64_t channels) {
  if (!IsLike(vectors, x) || vectors.dim() != 2 || vectors.size(0) != images || vectors.size(1) != channels ||
      !LiesSideBySide(vectors)) {
    return std::nullopt;
  }
  return PerImage{.data = vectors.const_data_ptr(), .image_stride = vectors.stride(0)};
}

std::optional<PerImage> ViewForAll(const at::Tensor& vector, const at::Tensor& x, int64_t channels) {
  if (!IsLike(vector, x) || vector.dim() != 1 || vector.size(0) != channels || !LiesSideBySide(vector)) {
    return std::nullopt;
  }
  return PerImage{.data = vector.const_data_ptr(), .image_stride = 0};
}

}  // namespace tessera::kernels::cuda
