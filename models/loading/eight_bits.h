// Quantizes weights to eight bits: row r of a matrix is scale_r · q_r, with integers q_r in [-127, 127] and scale_r =
// (largest magnitude of the row) / 127. This takes half the memory of bf16; the error of a weight is at most half of
// its row's scale.
#pragma once

#include <ATen/ATen.h>

#include "control/parameters/weight_storage.h"
#include "models/loading/param_table.h"

namespace tessera::models {

// Holds the weights of all products in eight bits.
ParamTable::FormOf InEightBits();

// Holds the weights of all products in the storage, which quantizes; those whose rows are no whole blocks stay plain.
ParamTable::FormOf InStorage(control::WeightStorage storage);

// Returns the fp32 scales [rows, 1] of rows whose largest magnitudes are `largest` [rows]. The scale of a row of zeros
// is 1.
at::Tensor ScalesOf(const at::Tensor& largest);

// rows [rows, in] of any floating-point type → int8, rounded to nearest, ties to even.
at::Tensor ToEightBits(const at::Tensor& rows, const at::Tensor& scales);

// values [out, in] int8 or its bytes, scales [out, 1] → the weight in `dtype`, rounded once.
at::Tensor FromEightBits(const at::Tensor& values, const at::Tensor& scales, at::ScalarType dtype);

}  // namespace tessera::models
