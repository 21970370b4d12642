// Convolutions over images too large for whole-image temporaries. A layer's output is computed in bands of rows, each
// from exactly the input rows it depends on, and normalisation uses statistics of the whole image: the result is that
// of the undivided layer, never a blend of tiles. The image's rows may be spread over ranks (`image` says how): a rank
// then makes its own rows, of which those at the edge depend on rows that its neighbours send.
//
// On a device images have their channels last in memory, as its convolutions want them.
//
// Shapes: b batch, c channels, h (this rank's rows) and w of the layer's input.
#pragma once

#include <ATen/ATen.h>

#include <memory>
#include <optional>

#include "models/loading/param_table.h"
#include "parallel/image_rows.h"

namespace tessera::models {

// How much memory one band's temporaries may take: on the host about what its caches serve, on a device an image of
// 1024 x 1024, of which a part would not keep it busy.
inline int64_t BandBytesOn(at::Device device) { return int64_t{device.is_cpu() ? 64 : 512} << 20; }

// Images in the order in which the device convolves: with their channels last, but on the host.
at::Tensor InOrderOf(const at::Tensor& image);

// GroupNorm; its statistics are taken over the whole image.
class GroupNorm {
 public:
  GroupNorm(const ParamScope& scope, int64_t channels, int64_t groups);

  // y = x · factor + offset, both [b, c] in max(fp32, dtype of x), and SiLU of y.
  struct Affine {
    at::Tensor factor, offset;
    at::Tensor Apply(const at::Tensor& x, bool silu) const;
  };
  // x [b, c, h, w]. The same on every rank, bit for bit.
  Affine Measure(const at::Tensor& x, const parallel::ImageRows& image, int64_t band_bytes) const;

 private:
  int64_t groups_;
  at::Tensor weight_, bias_;  // [c]
};

enum class Resample {
  kNone,
  kUp,    // nearest neighbour to twice the size, before the convolution
  kDown,  // stride 2, zeros added right and below only
};

// 3 × 3 (zero padding) or 1 × 1 convolution, optionally of SiLU(GroupNorm(x)).
class BandedConv {
 public:
  BandedConv(const ParamScope& scope, int64_t in, int64_t out, int64_t kernel = 3, Resample resample = Resample::kNone);

  // x [b, in, h, w], the rows of `image` → [b, out, h', w']. Over several ranks kDown needs an even number of rows on
  // each.
  at::Tensor Forward(const at::Tensor& x, const GroupNorm* norm, const parallel::ImageRows& image,
                     int64_t band_bytes) const;

 private:
  int64_t kernel_;
  Resample resample_;
  std::shared_ptr<at::Tensor> weight_;  // [out, in, kernel, kernel]; shared with the table, which may pack it
  at::Tensor bias_;                     // [out]
};

}  // namespace tessera::models
