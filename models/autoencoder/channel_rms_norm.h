// ChannelRmsNorm divides the channels of each pixel by their root mean square.
#pragma once

#include "models/autoencoder/image_norm.h"
#include "models/loading/param_table.h"

namespace tessera::models {

// x / max(|x|, 1e-12) · √c · gamma, where |x| is the norm over the channels of one pixel (WanRMS_norm of diffusers).
class ChannelRmsNorm final : public ImageNorm {
 public:
  // The parameter is gamma [channels, 1, …] with `trailing` ones.
  ChannelRmsNorm(const ParamScope& scope, int64_t channels, int64_t trailing);

  // Each pixel is normalised by itself, so nothing is read.
  OfRows Measure(const at::Tensor& x, const parallel::ImageRows& image, int64_t band_bytes) const override;

 private:
  at::Tensor gamma_;
};

}  // namespace tessera::models
