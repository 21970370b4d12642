// Weights in eight bits: row r of a matrix is scale_r · q_r with whole numbers q_r in [-127, 127], scale_r a 127th of
// the row's largest magnitude. Half of what bf16 takes; the error of a weight is at most half of its row's scale.
#pragma once

#include <ATen/ATen.h>

namespace tessera::models {

// The scales [rows, 1] in fp32 of rows whose largest magnitudes are `largest` [rows]. Those of rows of zeros are 1.
at::Tensor ScalesOf(const at::Tensor& largest);

// rows [rows, in] of any floating type → int8, to the nearest, the even one of two.
at::Tensor ToEightBits(const at::Tensor& rows, const at::Tensor& scales);

// values [out, in] int8, scales [out, 1] → the weight in `dtype`, rounded once.
at::Tensor FromEightBits(const at::Tensor& values, const at::Tensor& scales, at::ScalarType dtype);

}  // namespace tessera::models
