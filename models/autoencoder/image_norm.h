// ImageNorm is the interface of the norms in autoencoders, which act on the input of a convolution or of attention.
#pragma once

#include <ATen/ATen.h>

#include <functional>

#include "parallel/image_rows.h"

namespace tessera::models {

class ImageNorm {
 public:
  virtual ~ImageNorm() = default;

  // Normalises rows of the measured image: [b, c, rows, w] → the same shape, followed by SiLU if `silu` is set.
  using OfRows = std::function<at::Tensor(const at::Tensor& rows, bool silu)>;

  // Reads the statistics of the image x [b, c, h, w], if the norm depends on any. Every rank calls it, and the result
  // is identical on every rank.
  virtual OfRows Measure(const at::Tensor& x, const parallel::ImageRows& image, int64_t band_bytes) const = 0;
};

}  // namespace tessera::models
