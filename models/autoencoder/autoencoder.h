// Autoencoder implements AutoencoderKL of the latent diffusion models (Rombach et al., 2022): images to latents and
// back.
#pragma once

#include <memory>
#include <vector>

#include "models/autoencoder/autoencoder_config.h"
#include "models/autoencoder/banded_conv.h"
#include "models/autoencoder/image_codec.h"
#include "models/autoencoder/latent_norm.h"
#include "models/layers/linear.h"

namespace tessera::models {

// Inference only: activations are overwritten in place, so gradients cannot pass through.
class Autoencoder final : public ImageCodec {
 public:
  Autoencoder(const AutoencoderConfig& config, ParamTable& table);
  ~Autoencoder() override;

  struct Posterior {
    at::Tensor mean, log_variance;  // [b, latent channels, h, w]; log_variance within [−30, 20]
  };

  // Every rank computes and holds only its rows of the image.
  at::Tensor Decode(const at::Tensor& latents, const parallel::ForwardContext& context) const override {
    return DecodeInBands(latents, context, BandBytesOn(latents.device()));
  }
  LatentPosterior Encode(const at::Tensor& image, const parallel::ForwardContext& context) const override;

  // Decode and Encode in bands of another size. The posterior is that of the latents before norm().
  at::Tensor DecodeInBands(const at::Tensor& latents, const parallel::ForwardContext& context,
                           int64_t band_bytes) const;
  Posterior EncodeInBands(const at::Tensor& image, const parallel::ForwardContext& context, int64_t band_bytes) const;

  const LatentNorm& norm() const { return norm_; }

 private:
  struct Residual;
  struct Attention;
  struct Middle;
  struct Level;

  int64_t factor_;
  LatentNorm norm_;
  std::unique_ptr<BandedConv> quant_, post_quant_;
  BandedConv encoder_in_, decoder_in_;
  std::vector<Level> down_, up_;
  std::unique_ptr<Middle> encoder_middle_, decoder_middle_;
  GroupNorm encoder_norm_, decoder_norm_;
  BandedConv encoder_out_, decoder_out_;
};

}  // namespace tessera::models
