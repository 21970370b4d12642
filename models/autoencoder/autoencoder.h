// Autoencoder implements AutoencoderKL of the latent diffusion models (Rombach et al., 2022): images to latents and
// back.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "models/autoencoder/autoencoder_config.h"
#include "models/autoencoder/banded_conv.h"
#include "models/layers/linear.h"

namespace tessera::models {

// Inference only: activations are overwritten in place, so gradients cannot pass through.
class Autoencoder {
 public:
  Autoencoder(const AutoencoderConfig& config, ParamTable& table);
  ~Autoencoder();

  struct Posterior {
    at::Tensor mean, log_variance;  // [b, latent channels, h, w]; log_variance within [−30, 20]
  };

  // latents [b, latent channels, h, w] as the transformer uses them, the same on every rank of context.world → image
  // [b, 3, h·factor, w·factor], about [−1, 1], on the first rank; the other ranks return an image without rows. Every
  // rank computes and holds only its rows. `band_bytes` replaces BandBytesOn.
  at::Tensor Decode(const at::Tensor& latents, const parallel::ForwardContext& context,
                    std::optional<int64_t> band_bytes = std::nullopt) const;

  // image [b, 3, H, W] in [−1, 1], the same on every rank of context.world, sides multiples of factor() → posterior of
  // the unscaled latents, the same on every rank. Every rank computes and holds only its rows.
  Posterior Encode(const at::Tensor& image, const parallel::ForwardContext& context,
                   std::optional<int64_t> band_bytes = std::nullopt) const;

  // Scale converts unscaled latents (a posterior's mean or sample) to the latents that the transformer uses; Unscale is
  // its inverse.
  at::Tensor Scale(const at::Tensor& z) const { return (z - config_.shift_factor) * config_.scaling_factor; }
  at::Tensor Unscale(const at::Tensor& latents) const {
    return latents / config_.scaling_factor + config_.shift_factor;
  }

  const AutoencoderConfig& config() const { return config_; }

 private:
  struct Residual;
  struct Attention;
  struct Middle;
  struct Level;

  AutoencoderConfig config_;
  std::unique_ptr<BandedConv> quant_, post_quant_;
  BandedConv encoder_in_, decoder_in_;
  std::vector<Level> down_, up_;
  std::unique_ptr<Middle> encoder_middle_, decoder_middle_;
  GroupNorm encoder_norm_, decoder_norm_;
  BandedConv encoder_out_, decoder_out_;
};

}  // namespace tessera::models
