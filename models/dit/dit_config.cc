#include "models/dit/dit_config.h"

#include "absl/strings/str_cat.h"
#include "base/macros/status_macros.h"

namespace tessera::models {

absl::StatusOr<DitConfig> ParseDitConfig(base::ConfigReader& reader) {
  DitConfig config;
  config.heads = reader.Int("num_attention_heads", 16, 1, 1024);
  config.head_dim = reader.Int("attention_head_dim", 72, 4, 1024);
  config.layers = reader.Int("num_layers", 28, 1, 1024);
  config.in_channels = reader.Int("in_channels", 4, 1, 1024);
  config.out_channels = reader.Int("out_channels", config.in_channels, 1, 2048);
  config.patch = reader.Int("patch_size", 2, 1, 64);
  config.sample_size = reader.Int("sample_size", 32, 1, 4096);
  config.classes = reader.Int("num_embeds_ada_norm", 1000, 1, 1'000'000);
  config.norm_eps = reader.Number("norm_eps", 1e-5, 0, 1);
  reader.Choice("norm_type", "ada_norm_zero", {"ada_norm_zero"});
  reader.Choice("activation_fn", "gelu-approximate", {"gelu-approximate"});
  reader.Ignore({"attention_type", "caption_channels", "cross_attention_dim", "double_self_attention", "dropout",
                 "interpolation_scale", "norm_num_groups", "num_vector_embeds", "only_cross_attention",
                 "upcast_attention", "use_additional_conditions", "use_linear_projection"});
  if (!reader.Bool("attention_bias", true)) reader.AddError("attention_bias", "DiT has biases: true");
  if (reader.Bool("norm_elementwise_affine", false)) {
    reader.AddError("norm_elementwise_affine", "DiT's norms have no weights: false");
  }
  if (config.width() % 4 != 0) {
    reader.AddError("attention_head_dim", absl::StrCat("num_attention_heads x attention_head_dim = ", config.width(),
                                                       " must be a multiple of 4"));
  }
  if (config.out_channels != config.in_channels && config.out_channels != 2 * config.in_channels) {
    reader.AddError("out_channels", absl::StrCat("it must be in_channels = ", config.in_channels, " or twice that"));
  }
  if (config.sample_size % config.patch != 0) reader.AddError("sample_size", "it must be a multiple of patch_size");
  RETURN_IF_ERROR(reader.status());
  return config;
}

}  // namespace tessera::models
