#include "models/autoencoder/autoencoder.h"

#include <utility>
#include <vector>

#include "models/precision.h"
#include "parallel/image_rows.h"

namespace tessera::models {

Autoencoder::Autoencoder(AutoencoderParts parts) : parts_(std::move(parts)) {}

at::Tensor Autoencoder::DecodeInBands(const at::Tensor& latents, const parallel::ForwardContext& context,
                                      int64_t band_bytes) const {
  parallel::ImageRows image(parallel::EvenRows(latents.size(2), context.world.size()), context.world);
  const at::Tensor z = parts_.norm.Invert(image.Take(latents));
  const at::Tensor x = parts_.decoder.Forward(InOrderOf(z), context, image, band_bytes);
  return image.GatherOnFirst(x);
}

at::Tensor Autoencoder::LatentsOf(const at::Tensor& z) const {
  return parts_.norm.Apply(z);
}

LatentPosterior Autoencoder::Encode(const at::Tensor& image, const parallel::ForwardContext& context) const {
  const Posterior posterior = EncodeInBands(image, context, BandBytesOn(image.device()));
  const at::ScalarType accumulated = AccumulationType(image.scalar_type());
  const at::Tensor mean = LatentsOf(posterior.mean.to(accumulated));
  const at::Tensor deviation = (posterior.log_variance.to(accumulated) * 0.5).exp();
  return {.mean = mean, .deviation = parts_.norm.ApplyToDeviation(deviation)};
}

Autoencoder::Posterior Autoencoder::EncodeInBands(const at::Tensor& image, const parallel::ForwardContext& context,
                                                  int64_t band_bytes) const {
  // Each rank has the pixels of whole rows of latents, so that every level can halve them.
  const int64_t factor = parts_.factor;
  const std::vector<int64_t> latent_rows = parallel::EvenRows(image.size(2) / factor, context.world.size());
  parallel::ImageRows rows = parallel::ImageRows(latent_rows, context.world).Enlarged(factor);
  at::Tensor x = parts_.encoder.Forward(InOrderOf(rows.Take(image)), context, rows, band_bytes);
  x = rows.GatherOnAll(x);
  const std::vector<at::Tensor> parts = x.chunk(2, 1);
  return {.mean = parts[0], .log_variance = parts[1].clamp(-30, 20)};
}

}  // namespace tessera::models
