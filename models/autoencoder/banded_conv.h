// Implements convolutions of images that are too large for whole-image temporaries. A layer's output is computed in
// bands of rows, each from exactly the input rows it depends on, and normalisation uses statistics of the whole image,
// so the result is that of the undivided layer, never a blend of tiles. The image's rows may be spread over ranks
// (`image` describes how): each rank then computes its rows, and receives the rows that those at the edge depend on
// from its neighbours.
//
// On a device images are in channels-last layout, which its convolutions prefer.
//
// Shapes: b batch, c channels, h (this rank's rows) and w of the layer's input.
#pragma once

#include <ATen/ATen.h>

#include <memory>

#include "control/model/step_memory.h"
#include "models/autoencoder/image_norm.h"
#include "models/loading/param_table.h"
#include "parallel/image_rows.h"

namespace tessera::models {

// Returns the memory that one band's temporaries may take: on the host about the size of its caches, on a device the
// size for an image of 1024 x 1024, because a part of it would not keep the device busy.
inline int64_t BandBytesOn(at::Device device) { return device.is_cpu() ? control::kHostBandBytes : int64_t{512} << 20; }

// Returns the image in the layout that the device's convolutions use: channels-last, except on the host.
at::Tensor InOrderOf(const at::Tensor& image);

// GroupNorm with statistics over the whole image.
class GroupNorm final : public ImageNorm {
 public:
  GroupNorm(const ParamScope& scope, int64_t channels, int64_t groups);

  OfRows Measure(const at::Tensor& x, const parallel::ImageRows& image, int64_t band_bytes) const override;

 private:
  int64_t groups_;
  at::Tensor weight_, bias_;  // [c]
};

enum class Resample {
  kNone,
  kUp,    // nearest neighbour to twice the size, before the convolution
  kDown,  // stride 2, zeros added only at the right and below
};

struct ConvOptions {
  int64_t kernel = 3;  // 3 or 1, with zero padding
  Resample resample = Resample::kNone;
  // The size in time of a causal convolution of videos, whose weight is [out, in, frames, kernel, kernel] in the file.
  // It reads a frame and frames before it. An image is a single frame, before which are zeros, so only the last slice
  // of the weight in time is loaded. 0 for a convolution of images.
  int64_t frames = 0;
};

// A convolution, optionally of SiLU(norm(x)).
class BandedConv {
 public:
  BandedConv(const ParamScope& scope, int64_t in, int64_t out, const ConvOptions& options = {});

  // x [b, in, h, w], the rows of `image` → [b, out, h', w']. With several ranks kDown needs an even number of rows on
  // each.
  at::Tensor Forward(const at::Tensor& x, const ImageNorm* norm, const parallel::ImageRows& image,
                     int64_t band_bytes) const;

  // Returns the distribution of Forward's result.
  parallel::ImageRows RowsAfter(const parallel::ImageRows& image) const;

 private:
  int64_t kernel_;
  Resample resample_;
  std::shared_ptr<at::Tensor> weight_;  // [out, in, kernel, kernel]; shared with the table, which may pack it
  at::Tensor bias_;                     // [out]
};

}  // namespace tessera::models
