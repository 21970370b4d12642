#include "models/pixart/pixart_config.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/macros/status_macros.h"

namespace tessera::models {

absl::StatusOr<PixArtConfig> ParsePixArtConfig(base::ConfigReader& reader) {
  PixArtConfig config;
  config.heads = reader.Int("num_attention_heads", 16, 1, 1024);
  config.head_dim = reader.Int("attention_head_dim", 72, 4, 1024);
  config.layers = reader.Int("num_layers", 28, 1, 1024);
  config.in_channels = reader.Int("in_channels", 4, 1, 1024);
  config.out_channels = reader.Int("out_channels", config.in_channels, 1, 2048);
  config.patch = reader.Int("patch_size", 2, 1, 64);
  config.sample_size = reader.Int("sample_size", 128, 1, 4096);
  config.caption_channels = reader.Int("caption_channels", 4096, 1, 65536);
  config.additional_conditions = reader.Bool("use_additional_conditions", config.sample_size == 128);
  config.interpolation_scale =
      reader.Number("interpolation_scale", static_cast<double>(std::max<int64_t>(config.sample_size / 64, 1)));
  config.norm_eps = reader.Number("norm_eps", 1e-6, 0);
  reader.Choice("norm_type", "ada_norm_single", {"ada_norm_single"});
  reader.Choice("activation_fn", "gelu-approximate", {"gelu-approximate"});
  reader.Ignore({"dropout", "norm_num_groups", "num_embeds_ada_norm", "upcast_attention", "attention_type",
                 "num_vector_embeds", "use_linear_projection", "only_cross_attention", "double_self_attention"});

  const std::string product = absl::StrCat("num_attention_heads x attention_head_dim = ", config.width());
  if (!reader.Bool("attention_bias", true)) reader.AddError("attention_bias", "PixArt has biases: true");
  if (reader.Bool("norm_elementwise_affine", false)) {
    reader.AddError("norm_elementwise_affine", "PixArt's norms have no weights: false");
  }
  if (reader.Int("cross_attention_dim", config.width()) != config.width()) {
    reader.AddError("cross_attention_dim", absl::StrCat("it must be ", product));
  }
  if (config.width() % 4 != 0) reader.AddError("attention_head_dim", absl::StrCat(product, " must be a multiple of 4"));
  if (config.additional_conditions && config.width() % 3 != 0) {
    reader.AddError("use_additional_conditions", absl::StrCat(product, " must then be a multiple of 3"));
  }
  if (config.out_channels != config.in_channels && config.out_channels != 2 * config.in_channels) {
    reader.AddError("out_channels", absl::StrCat("it must be in_channels = ", config.in_channels, " or twice that"));
  }
  if (!(config.interpolation_scale > 0)) reader.AddError("interpolation_scale", "it must be above 0");
  if (config.sample_size < config.patch) reader.AddError("sample_size", "it must be at least patch_size");
  RETURN_IF_ERROR(reader.status());
  return config;
}

}  // namespace tessera::models
