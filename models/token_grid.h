// Converts an image's latents to tokens and back: geometry and data movement only.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

namespace tessera::models {

// The tokens of one whole image, row-major, and after them those with which a transformer pads it.
struct TokenGrid {
  int64_t height = 0;
  int64_t width = 0;
  int64_t padding = 0;
  int64_t image() const { return height * width; }
  int64_t count() const { return image() + padding; }
  bool operator==(const TokenGrid&) const = default;
};

// latents [b, c, h·p, w·p] → [b, h·w, c·p·p]. Features are ordered (channel, row, column) with the channel slowest, as
// in a convolution's weight [out, c, p, p] and in FLUX's packed latents.
at::Tensor Patchify(const at::Tensor& latents, int64_t patch);

// Appends rows of zeros: [b, n, c] → [b, tokens, c].
at::Tensor Padded(const at::Tensor& patches, int64_t tokens);

// The inverse of Patchify: [b, h·w, c·p·p] with the channel slowest → [b, c, h·p, w·p].
at::Tensor Unpack(const at::Tensor& tokens, TokenGrid grid, int64_t patch);

// [b, h·w, p·p·c], features ordered (row, column, channel) with the channel fastest → [b, c, h·p, w·p].
at::Tensor Unpatchify(const at::Tensor& tokens, TokenGrid grid, int64_t patch);

// Returns the sin-cos table of a grid's tokens, [count, dim], in `dtype` on `device`; it is computed in fp64 on the
// host. `base` is the grid side that the model was trained at: any grid spans the same range of coordinates, k / (n /
// base) / scale. The first half of the channels encodes the column, the second the row. Each half is [sin, cos] with
// frequencies 10000^(−k/(dim/4)).
at::Tensor SinCosTable(TokenGrid grid, int64_t dim, double base, double scale, at::ScalarType dtype, at::Device device);

}  // namespace tessera::models
