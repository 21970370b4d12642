#include "models/autoencoder/decoding_cost.h"

#include <algorithm>
#include <cmath>

#include "control/model/model_cost.h"

namespace tessera::models {

void DescribeDecoding(const DecoderShape& decoder, control::ModelCost& cost) {
  constexpr double kWindow = 9;  // weights of a 3 x 3 convolution for each pair of channels
  const auto latents = static_cast<double>(decoder.latent_channels),
             image = static_cast<double>(decoder.image_channels);
  const auto widest = static_cast<double>(decoder.levels.back().in);
  double products = kWindow * static_cast<double>(decoder.levels.front().out) * image;  // of a pixel
  double share = 1;  // pixels of a level for each of the image
  for (size_t level = 0; level < decoder.levels.size(); ++level) {
    share = std::pow(4.0, -static_cast<double>(level));
    const auto in = static_cast<double>(decoder.levels[level].in), out = static_cast<double>(decoder.levels[level].out);
    double of_level = kWindow * (in + out) * out + (in == out ? 0 : in * out);
    of_level += static_cast<double>(decoder.residuals - 1) * 2 * kWindow * out * out;
    // The enlargement has four times the level's pixels.
    if (level > 0) of_level += 4 * kWindow * out * static_cast<double>(decoder.levels[level].enlarged);
    products += share * of_level;
    cost.decode_values_per_pixel = std::max(cost.decode_values_per_pixel, share * (in + 3 * out));
  }
  double of_latent = kWindow * latents * widest + 4 * kWindow * widest * widest;
  if (decoder.attention) of_latent += 4 * widest * widest;
  if (decoder.post_quant_conv) of_latent += latents * latents;
  cost.decode_flops_per_pixel = 2 * (products + share * of_latent);
}

}  // namespace tessera::models
