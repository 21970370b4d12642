#include "models/layers/rotary.h"

#include <cmath>

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

at::Tensor RepeatOverRows(const at::Tensor& of_columns, int64_t rows) { return of_columns.repeat({rows, 1}); }

at::Tensor RepeatOverColumns(const at::Tensor& of_rows, int64_t columns) {
  return of_rows.repeat_interleave(columns, 0);
}

}  // namespace tessera::models
