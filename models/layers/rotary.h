// Rotary position embeddings (Su et al., 2021) of the families that have them: tables of angles, by which
// kernels::QkvNormRope turns adjacent pairs of channels.
#pragma once

#include <ATen/ATen.h>

#include "models/transformer.h"

namespace tessera::models {

// Angles [positions, dim/2]: position · 10000^(−2k/dim), in the dtype of `positions` [positions].
at::Tensor RotaryAngles(const at::Tensor& positions, int64_t dim);

// Positions of tokens with these angles [tokens, d/2]: cosines and sines in `dtype` on `device`.
Positions RotaryPositions(const at::Tensor& angles, at::ScalarType dtype, at::Device device);

// The rows of a [rows·columns, …] table that belong to a token grid: along one axis repeated over the other.
at::Tensor RepeatOverRows(const at::Tensor& of_columns, int64_t rows);
at::Tensor RepeatOverColumns(const at::Tensor& of_rows, int64_t columns);

}  // namespace tessera::models
