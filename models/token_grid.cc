#include "models/token_grid.h"

#include <cmath>
#include <utility>

#include "base/macros/planted.h"
#include "kernels/ops.h"

namespace tessera::models {
namespace {

// Returns [n, dim/2]: the sines and cosines of one axis's coordinates.
at::Tensor AxisTable(int64_t n, int64_t dim, double base, double scale) {
  const at::Tensor k = at::arange(dim / 4, at::kDouble);
  const at::Tensor frequencies = at::pow(at::scalar_tensor(10000.0, at::kDouble), -k / (static_cast<double>(dim) / 4));
  const at::Tensor positions = at::arange(n, at::kDouble) / (static_cast<double>(n) / base) / scale;
  const at::Tensor angles = at::outer(positions, frequencies);
  return at::cat({kernels::Sin(angles), kernels::Cos(angles)}, 1);
}

}  // namespace

at::Tensor Patchify(const at::Tensor& latents, int64_t patch) {
  const int64_t b = latents.size(0), c = latents.size(1), h = latents.size(2) / patch, w = latents.size(3) / patch;
  return latents.reshape({b, c, h, patch, w, patch}).permute({0, 2, 4, 1, 3, 5}).reshape({b, h * w, c * patch * patch});
}

at::Tensor Padded(const at::Tensor& patches, int64_t tokens) {
  const int64_t missing = tokens - patches.size(1);
  return missing == 0 ? patches : at::constant_pad_nd(patches, {0, 0, 0, missing});
}

at::Tensor Unpack(const at::Tensor& tokens, TokenGrid grid, int64_t patch) {
  const int64_t b = tokens.size(0), c = tokens.size(2) / (patch * patch);
  at::Tensor split = tokens.reshape({b, grid.height, grid.width, c, patch, patch});
  if (base::Planted("packed_latents")) split = split.transpose(4, 5);
  return split.permute({0, 3, 1, 4, 2, 5}).reshape({b, c, grid.height * patch, grid.width * patch});
}

at::Tensor Unpatchify(const at::Tensor& tokens, TokenGrid grid, int64_t patch) {
  const int64_t b = tokens.size(0), c = tokens.size(2) / (patch * patch);
  return tokens.reshape({b, grid.height, grid.width, patch, patch, c})
      .permute({0, 5, 1, 3, 2, 4})
      .reshape({b, c, grid.height * patch, grid.width * patch});
}

at::Tensor SinCosTable(TokenGrid grid, int64_t dim, double base, double scale, at::ScalarType dtype,
                       at::Device device) {
  // Only the axes are copied to the device, because they are small.
  at::Tensor columns = AxisTable(grid.width, dim, base, scale).to(device, dtype).repeat({grid.height, 1});
  at::Tensor rows = AxisTable(grid.height, dim, base, scale).to(device, dtype).repeat_interleave(grid.width, 0);
  if (base::Planted("position_axes")) std::swap(columns, rows);
  return at::cat({columns, rows}, 1);
}

}  // namespace tessera::models
