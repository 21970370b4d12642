#include "models/autoencoder/autoencoder.h"

#include <utility>
#include <vector>

#include "base/macros/planted.h"
#include "models/precision.h"
#include "parallel/image_rows.h"

namespace tessera::models {

namespace {

// [b, c · patch², h, w] → [b, c, h · patch, w · patch], from channels ordered (channel, row, column).
at::Tensor FromPatches(const at::Tensor& latents, int64_t patch) {
  if (!base::Planted("patch_channels_fastest")) return at::pixel_shuffle(latents, patch);
  return at::pixel_shuffle(latents.unflatten(1, {patch * patch, -1}).transpose(1, 2).flatten(1, 2), patch);
}

// The inverse of FromPatches.
at::Tensor ToPatches(const at::Tensor& z, int64_t patch) {
  const at::Tensor latents = at::pixel_unshuffle(z, patch);
  if (!base::Planted("patch_channels_fastest")) return latents;
  return latents.unflatten(1, {-1, patch * patch}).transpose(1, 2).flatten(1, 2);
}

}  // namespace

Autoencoder::Autoencoder(AutoencoderParts parts) : parts_(std::move(parts)) {}

at::Tensor Autoencoder::DecodeInBands(const at::Tensor& latents, const parallel::ForwardContext& context,
                                      int64_t band_bytes) const {
  parallel::ImageRows image(parallel::EvenRows(latents.size(2), context.world.size()), context.world);
  at::Tensor x = parts_.norm.Invert(image.Take(latents));
  if (parts_.patch > 1) {
    x = FromPatches(x, parts_.patch);
    image = image.Enlarged(parts_.patch);
  }
  x = parts_.decoder.Forward(InOrderOf(x), context, image, band_bytes);
  if (parts_.clamps) x = x.clamp_(-1, 1);
  return image.GatherOnFirst(x);
}

at::Tensor Autoencoder::LatentsOf(const at::Tensor& z) const {
  return parts_.norm.Apply(parts_.patch > 1 ? ToPatches(z, parts_.patch) : z);
}

LatentPosterior Autoencoder::Encode(const at::Tensor& image, const parallel::ForwardContext& context) const {
  const Posterior posterior = EncodeInBands(image, context, BandBytesOn(image.device()));
  const at::ScalarType accumulated = AccumulationType(image.scalar_type());
  const at::Tensor mean = LatentsOf(posterior.mean.to(accumulated));
  if (parts_.encodes_mean_only) return {.mean = mean, .deviation = at::zeros_like(mean)};
  const at::Tensor deviation = (posterior.log_variance.to(accumulated) * 0.5).exp();
  return {.mean = mean, .deviation = parts_.norm.ApplyToDeviation(deviation)};
}

Autoencoder::Posterior Autoencoder::EncodeInBands(const at::Tensor& image, const parallel::ForwardContext& context,
                                                  int64_t band_bytes) const {
  // Each rank has the pixels of whole rows of the transformer's latents, so that every level can halve them.
  const int64_t factor = parts_.factor * parts_.patch;
  const std::vector<int64_t> latent_rows = parallel::EvenRows(image.size(2) / factor, context.world.size());
  parallel::ImageRows rows = parallel::ImageRows(latent_rows, context.world).Enlarged(factor);
  at::Tensor x = parts_.encoder.Forward(InOrderOf(rows.Take(image)), context, rows, band_bytes);
  x = rows.GatherOnAll(x);
  const std::vector<at::Tensor> parts = x.chunk(2, 1);
  return {.mean = parts[0], .log_variance = parts[1].clamp(-30, 20)};
}

}  // namespace tessera::models
