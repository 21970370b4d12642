#include "models/layers/rotary.h"

#include <cmath>
#include <vector>

#include "base/macros/planted.h"
#include "kernels/ops.h"

namespace tessera::models {

at::Tensor RotaryAngles(const at::Tensor& positions, int64_t dim, double theta) {
  const at::Tensor k = at::arange(0, dim, 2, positions.options());
  const at::Tensor frequencies = 1.0 / at::pow(at::scalar_tensor(theta, positions.options()), k / dim);
  return at::outer(positions, frequencies);
}

Positions RotaryPositions(const at::Tensor& angles, at::ScalarType dtype, at::Device device) {
  return {.embedded = {}, .cos = kernels::Cos(angles).to(device, dtype), .sin = kernels::Sin(angles).to(device, dtype)};
}

at::Tensor RotateHalves(const at::Tensor& x, const Positions& tables) {
  const at::ScalarType wide = tables.cos.scalar_type();
  if (base::Planted("decoder_rotates_pairs")) {
    const at::Tensor cos = tables.cos.unsqueeze(1), sin = tables.sin.unsqueeze(1);
    const at::Tensor even = x.slice(-1, 0, x.size(-1), 2).to(wide), odd = x.slice(-1, 1, x.size(-1), 2).to(wide);
    return at::stack({even * cos - odd * sin, odd * cos + even * sin}, -1).flatten(-2).to(x.scalar_type());
  }
  const std::vector<at::Tensor> halves = x.to(wide).chunk(2, -1);
  const at::Tensor cos = tables.cos.unsqueeze(1), sin = tables.sin.unsqueeze(1);
  return at::cat({halves[0] * cos - halves[1] * sin, halves[1] * cos + halves[0] * sin}, -1).to(x.scalar_type());
}

at::Tensor RepeatOverRows(const at::Tensor& of_columns, int64_t rows) { return of_columns.repeat({rows, 1}); }

at::Tensor RepeatOverColumns(const at::Tensor& of_rows, int64_t columns) {
  return of_rows.repeat_interleave(columns, 0);
}

}  // namespace tessera::models
