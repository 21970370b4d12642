#include "models/autoencoder/autoencoder_config.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/macros/status_macros.h"
#include "control/model/model_cost.h"

namespace tessera::models {

absl::StatusOr<AutoencoderConfig> ParseAutoencoderConfig(base::ConfigReader& reader) {
  AutoencoderConfig config;
  config.image_channels = reader.Int("in_channels", 3, 3, 3);
  config.latent_channels = reader.Int("latent_channels", 4, 1, 1024);
  config.widths = reader.Ints("block_out_channels", {64});
  config.layers_per_block = reader.Int("layers_per_block", 1, 1, 64);
  config.groups = reader.Int("norm_num_groups", 32, 1, 1024);
  config.quant_conv = reader.Bool("use_quant_conv", true);
  config.post_quant_conv = reader.Bool("use_post_quant_conv", true);
  config.mid_attention = reader.Bool("mid_block_add_attention", true);
  config.scaling_factor = reader.Number("scaling_factor", 0.18215, 1e-6, 1e6);
  config.shift_factor = reader.Number("shift_factor", 0, -1e6, 1e6);
  reader.Choice("act_fn", "silu", {"silu"});
  reader.Ignore({"sample_size", "force_upcast", "latents_mean", "latents_std"});
  reader.Int("out_channels", 3, 3, 3);

  if (config.widths.empty() || config.widths.size() > 8) {
    reader.AddError("block_out_channels", "it must have 1 to 8 entries");
  }
  for (const int64_t width : config.widths) {
    if (width < 1 || width > 65536 || width % config.groups != 0) {
      reader.AddError("block_out_channels",
                      absl::StrCat("each entry must be a multiple of norm_num_groups = ", config.groups));
    }
  }
  for (const char* key : {"latents_mean", "latents_std"}) {
    if (reader.Has(key)) reader.AddError(key, "AutoencoderKL scales all channels alike: null");
  }
  const auto check_blocks = [&](const char* key, const std::string& valid) {
    const std::vector<std::string> types = reader.Strings(key, std::vector<std::string>(config.widths.size(), valid));
    if (types != std::vector<std::string>(config.widths.size(), valid)) {
      reader.AddError(key, absl::StrCat("it must name ", valid, " once for each entry of block_out_channels"));
    }
  };
  check_blocks("down_block_types", "DownEncoderBlock2D");
  check_blocks("up_block_types", "UpDecoderBlock2D");
  RETURN_IF_ERROR(reader.status());
  return config;
}

void DescribeDecoding(const AutoencoderConfig& config, control::ModelCost& cost) {
  constexpr double kWindow = 9;  // weights of a 3 x 3 convolution for each pair of channels
  const auto channels = [&](size_t level) { return static_cast<double>(config.widths[level]); };
  const double latents = static_cast<double>(config.latent_channels),
               image = static_cast<double>(config.image_channels);
  const size_t coarsest = config.widths.size() - 1;
  const double widest = channels(coarsest);
  double products = 0;  // of a pixel
  for (size_t level = 0; level <= coarsest; ++level) {
    const double share = std::pow(4.0, -static_cast<double>(level));  // pixels of this level for each of the image
    const double in = channels(std::min(level + 1, coarsest)), out = channels(level);
    double of_level = kWindow * (in + out) * out + (in == out ? 0 : in * out);
    of_level += static_cast<double>(config.layers_per_block) * 2 * kWindow * out * out;
    if (level < coarsest) of_level += kWindow * in * in;  // after the enlargement
    products += share * of_level;
    cost.decode_values_per_pixel = std::max(cost.decode_values_per_pixel, share * (in + 3 * out));
  }
  double of_latent = kWindow * latents * widest + 4 * kWindow * widest * widest;
  if (config.mid_attention) of_latent += 4 * widest * widest;
  if (config.post_quant_conv) of_latent += latents * latents;
  products += std::pow(4.0, -static_cast<double>(coarsest)) * of_latent + kWindow * channels(0) * image;
  cost.decode_flops_per_pixel = 2 * products;
}

}  // namespace tessera::models
