// How an image's latents become tokens: geometry and pure data movement.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

namespace tessera::models {

// Tokens of one whole image, row-major.
struct TokenGrid {
  int64_t height = 0;
  int64_t width = 0;
  int64_t count() const { return height * width; }
  bool operator==(const TokenGrid&) const = default;
};

// latents [b, c, h·p, w·p] → [b, h·w, c·p·p], features ordered (channel, row, column), channel slowest: the order of
// a convolution's weight [out, c, p, p] and of FLUX's packed latents.
at::Tensor Patchify(const at::Tensor& latents, int64_t patch);

// The inverse of Patchify: [b, h·w, c·p·p], channel slowest → [b, c, h·p, w·p].
at::Tensor Unpack(const at::Tensor& tokens, TokenGrid grid, int64_t patch);

// [b, h·w, p·p·c], features ordered (row, column, channel), channel fastest → [b, c, h·p, w·p].
at::Tensor Unpatchify(const at::Tensor& tokens, TokenGrid grid, int64_t patch);

// Sin-cos table of a grid's tokens, [count, dim], in `dtype` on `device` after computing in fp64 on the host. `base` is
// the grid side that the model was trained at: any grid spans the same range of coordinates, k / (n / base) / scale.
// The first half of the channels encodes the column, the second the row; within a half [sin, cos] with frequencies
// 10000^(−k/(dim/4)).
at::Tensor SinCosTable(TokenGrid grid, int64_t dim, double base, double scale, at::ScalarType dtype, at::Device device);

}  // namespace tessera::models
