#include "models/autoencoder/latent_norm.h"

#include "models/precision.h"

namespace tessera::models {
namespace {

at::Tensor OfChannels(const at::Tensor& values, const at::Tensor& z) {
  return values.to(z.device(), AccumulationType(z.scalar_type())).view({-1, 1, 1});
}

}  // namespace

LatentNorm::LatentNorm(const std::vector<double>& means, const std::vector<double>& deviations)
    : means_(at::tensor(means, at::kDouble)), variances_(at::tensor(deviations, at::kDouble).square()) {
  TORCH_CHECK(means.size() == deviations.size(), means.size(), " means and ", deviations.size(), " deviations");
}

LatentNorm::LatentNorm(const ParamScope& scope, int64_t channels, double eps)
    : means_(scope.Add("running_mean", {channels})), variances_(scope.Add("running_var", {channels})), eps_(eps) {}

at::Tensor LatentNorm::Means(const at::Tensor& z) const { return OfChannels(means_, z); }

at::Tensor LatentNorm::Deviations(const at::Tensor& z) const {
  return OfChannels((variances_.to(at::kDouble) + eps_).sqrt(), z);
}

at::Tensor LatentNorm::Apply(const at::Tensor& z) const {
  if (!of_channels()) return (z - shift_) * scale_;
  return ((z - Means(z)) / Deviations(z)).to(z.scalar_type());
}

at::Tensor LatentNorm::ApplyToDeviation(const at::Tensor& deviation) const {
  if (!of_channels()) return deviation * scale_;
  return (deviation / Deviations(deviation)).to(deviation.scalar_type());
}

at::Tensor LatentNorm::Invert(const at::Tensor& latents) const {
  if (!of_channels()) return latents / scale_ + shift_;
  return (latents * Deviations(latents) + Means(latents)).to(latents.scalar_type());
}

}  // namespace tessera::models
