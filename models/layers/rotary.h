// Computes rotary position embeddings (Su et al., 2021): tables of angles, by which kernels::QkvNormRope rotates
// adjacent pairs of channels, and RotateHalves those half a head apart.
#pragma once

#include <ATen/ATen.h>

#include "models/transformer.h"

namespace tessera::models {

// Returns angles [positions, dim/2]: position · theta^(−2k/dim), in the dtype of `positions` [positions].
at::Tensor RotaryAngles(const at::Tensor& positions, int64_t dim, double theta = 10000);

// Returns the cosines and sines of angles [tokens, d/2] in `dtype` on `device`.
Positions RotaryPositions(const at::Tensor& angles, at::ScalarType dtype, at::Device device);

// Rotates the first half of a head's channels with the second one. x [b, t, h, d]; tables [t, d/2].
at::Tensor RotateHalves(const at::Tensor& x, const Positions& tables);

// Repeat the coordinates of one axis over the other, so that the rows of the [rows·columns, …] result match the tokens
// of a grid.
at::Tensor RepeatOverRows(const at::Tensor& of_columns, int64_t rows);
at::Tensor RepeatOverColumns(const at::Tensor& of_rows, int64_t columns);

}  // namespace tessera::models
