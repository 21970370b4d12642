#include "models/autoencoder/autoencoder_config.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/macros/status_macros.h"

namespace tessera::models {

namespace {

void CheckWidths(const char* key, const std::vector<int64_t>& widths, int64_t groups, base::ConfigReader& reader) {
  for (const int64_t width : widths) {
    if (width < 1 || width > 65536 || width % groups != 0) {
      reader.AddError(key, absl::StrCat("each entry must be a multiple of norm_num_groups = ", groups));
    }
  }
}

// Reads the fields of the networks, which the classes have in common.
AutoencoderConfig ReadNetworks(int64_t default_latent_channels, base::ConfigReader& reader) {
  AutoencoderConfig config;
  config.image_channels = reader.Int("in_channels", 3, 3, 3);
  config.latent_channels = reader.Int("latent_channels", default_latent_channels, 1, 1024);
  config.widths = reader.Ints("block_out_channels", {64});
  config.layers_per_block = reader.Int("layers_per_block", 1, 1, 64);
  config.groups = reader.Int("norm_num_groups", 32, 1, 1024);
  config.quant_conv = reader.Bool("use_quant_conv", true);
  config.post_quant_conv = reader.Bool("use_post_quant_conv", true);
  config.mid_attention = reader.Bool("mid_block_add_attention", true);
  reader.Choice("act_fn", "silu", {"silu"});
  reader.Ignore({"sample_size", "force_upcast"});
  reader.Int("out_channels", 3, 3, 3);

  if (config.widths.empty() || config.widths.size() > 8) {
    reader.AddError("block_out_channels", "it must have 1 to 8 entries");
  }
  CheckWidths("block_out_channels", config.widths, config.groups, reader);
  const auto check_blocks = [&](const char* key, const std::string& valid) {
    const std::vector<std::string> types = reader.Strings(key, std::vector<std::string>(config.widths.size(), valid));
    if (types != std::vector<std::string>(config.widths.size(), valid)) {
      reader.AddError(key, absl::StrCat("it must name ", valid, " once for each entry of block_out_channels"));
    }
  };
  check_blocks("down_block_types", "DownEncoderBlock2D");
  check_blocks("up_block_types", "UpDecoderBlock2D");
  return config;
}

}  // namespace

absl::StatusOr<AutoencoderConfig> ParseAutoencoderConfig(base::ConfigReader& reader) {
  AutoencoderConfig config = ReadNetworks(/*default_latent_channels=*/4, reader);
  config.scaling_factor = reader.Number("scaling_factor", 0.18215, 1e-6, 1e6);
  config.shift_factor = reader.Number("shift_factor", 0, -1e6, 1e6);
  reader.Ignore({"latents_mean", "latents_std"});
  for (const char* key : {"latents_mean", "latents_std"}) {
    if (reader.Has(key)) reader.AddError(key, "AutoencoderKL scales all channels alike: null");
  }
  RETURN_IF_ERROR(reader.status());
  return config;
}

absl::StatusOr<AutoencoderConfig> ParseFlux2AutoencoderConfig(base::ConfigReader& reader) {
  const std::vector<int64_t> patches = {2, 2};  // the only ones that the pipelines of FLUX.2 make
  AutoencoderConfig config = ReadNetworks(/*default_latent_channels=*/32, reader);
  config.decoder_widths = reader.Ints("decoder_block_out_channels", {});
  config.batch_norm_eps = reader.Number("batch_norm_eps", 1e-4, 0, 1);
  config.patch = patches.front();
  reader.Ignore({"batch_norm_momentum"});  // used in training only
  if (reader.Ints("patch_size", patches) != patches) reader.AddError("patch_size", "it must be [2, 2]");
  if (!config.decoder_widths.empty() && config.decoder_widths.size() != config.widths.size()) {
    reader.AddError("decoder_block_out_channels", "it must have as many entries as block_out_channels, or be null");
  }
  CheckWidths("decoder_block_out_channels", config.decoder_widths, config.groups, reader);
  RETURN_IF_ERROR(reader.status());
  return config;
}

DecoderShape DecoderOf(const AutoencoderConfig& config) {
  const std::vector<int64_t>& widths = config.widths_of_decoder();
  DecoderShape decoder{.residuals = config.layers_per_block + 1,
                       .latent_channels = config.latent_channels,
                       .image_channels = config.image_channels,
                       .attention = config.mid_attention,
                       .post_quant_conv = config.post_quant_conv};
  for (size_t level = 0; level < widths.size(); ++level) {
    const int64_t in = widths[std::min(level + 1, widths.size() - 1)];
    decoder.levels.push_back({.in = in, .out = widths[level], .enlarged = widths[level]});
  }
  return decoder;
}

}  // namespace tessera::models
