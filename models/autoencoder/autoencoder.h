// Autoencoder is an image codec that consists of two convolutional networks, as in the latent diffusion models (Rombach
// et al., 2022). Its classes differ in the networks and in how the network's latents become those of the transformer.
#pragma once

#include <cstdint>

#include "models/autoencoder/image_codec.h"
#include "models/autoencoder/image_network.h"
#include "models/autoencoder/latent_norm.h"

namespace tessera::models {

struct AutoencoderParts {
  // Image [b, 3, H, W] → mean and log variance of the network's latents side by side, [b, 2 c, H / factor, W / factor].
  ImageNetwork encoder;
  // The network's latents [b, c, h, w] → image.
  ImageNetwork decoder;
  LatentNorm norm;  // of the latents after they were divided into patches
  int64_t factor = 1;
  // The transformer's latents are patches of this side of the network's: [b, c · patch², h / patch, w / patch], whose
  // channels are ordered (channel, row, column).
  int64_t patch = 1;
  bool encodes_mean_only = false;  // an image's latents are the posterior's mean, and are not drawn
  bool clamps = false;             // the decoded image is limited to [−1, 1]
};

class Autoencoder final : public ImageCodec {
 public:
  explicit Autoencoder(AutoencoderParts parts);

  // The network's posterior, [b, c, h, w].
  struct Posterior {
    at::Tensor mean, log_variance;  // log_variance within [−30, 20]
  };

  // Every rank computes and holds only its rows of the image.
  at::Tensor Decode(const at::Tensor& latents, const parallel::ForwardContext& context) const override {
    return DecodeInBands(latents, context, BandBytesOn(latents.device()));
  }
  LatentPosterior Encode(const at::Tensor& image, const parallel::ForwardContext& context) const override;

  // Decode and Encode in bands of another size.
  at::Tensor DecodeInBands(const at::Tensor& latents, const parallel::ForwardContext& context,
                           int64_t band_bytes) const;
  Posterior EncodeInBands(const at::Tensor& image, const parallel::ForwardContext& context, int64_t band_bytes) const;

  // Returns the transformer's latents for the network's latents z [b, c, h, w].
  at::Tensor LatentsOf(const at::Tensor& z) const;

 private:
  AutoencoderParts parts_;
};

}  // namespace tessera::models
