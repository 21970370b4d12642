// LatentNorm maps the latents that an autoencoder's network reads and writes to those that the transformer uses, whose
// values have a variance of about 1, and back.
#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "models/loading/param_table.h"

namespace tessera::models {

// Latents z are [b, c, h, w]. The result has their dtype.
class LatentNorm {
 public:
  // (z − shift) · scale, with one shift and scale for all channels.
  LatentNorm(double shift, double scale) : shift_(shift), scale_(scale) {}
  // (z − mean) / deviation, with a mean and a deviation for each channel.
  LatentNorm(const std::vector<double>& means, const std::vector<double>& deviations);
  // Batch normalisation without weights: (z − running_mean) / √(running_var + eps), each a parameter of `scope` with a
  // value for each channel.
  LatentNorm(const ParamScope& scope, int64_t channels, double eps);

  // Returns the latents that the transformer uses.
  at::Tensor Apply(const at::Tensor& z) const;
  // Returns the standard deviation of Apply(z) for that of z.
  at::Tensor ApplyToDeviation(const at::Tensor& deviation) const;
  // The inverse of Apply.
  at::Tensor Invert(const at::Tensor& latents) const;

 private:
  bool of_channels() const { return means_.defined(); }
  // Return [c, 1, 1] on the device of `z`, in max(fp32, its dtype).
  at::Tensor Means(const at::Tensor& z) const;
  at::Tensor Deviations(const at::Tensor& z) const;

  double shift_ = 0, scale_ = 1;
  at::Tensor means_, variances_;  // [c]; undefined if all channels have the same
  double eps_ = 0;
};

}  // namespace tessera::models
