#include "models/flux/flux_config.h"

#include <numeric>

#include "absl/strings/str_cat.h"
#include "base/macros/status_macros.h"

namespace tessera::models {

absl::StatusOr<FluxConfig> ParseFluxConfig(base::ConfigReader& reader) {
  FluxConfig config;
  config.heads = reader.Int("num_attention_heads", 24, 1, 1024);
  config.head_dim = reader.Int("attention_head_dim", 128, 2, 1024);
  config.double_blocks = reader.Int("num_layers", 19, 0, 1024);
  config.single_blocks = reader.Int("num_single_layers", 38, 0, 1024);
  const int64_t input_channels = reader.Int("in_channels", 64, 4, 4096);
  config.channels = reader.Int("out_channels", input_channels, 4, 4096);
  config.condition_channels = input_channels - config.channels;
  config.text_width = reader.Int("joint_attention_dim", 4096, 1, 65536);
  config.pooled_width = reader.Int("pooled_projection_dim", 768, 1, 65536);
  config.guidance = reader.Bool("guidance_embeds", false);
  config.axes = reader.Ints("axes_dims_rope", {16, 56, 56}, 2, 1024);
  if (config.condition_channels < 0) {
    reader.AddError("out_channels", absl::StrCat("it must be at most in_channels = ", input_channels, ", or null"));
  }
  if (config.channels % 4 != 0) reader.AddError("in_channels", "it must be a multiple of 4: tokens are 2 x 2 latents");
  reader.Int("patch_size", 1, 1, 1);
  if (config.axes.size() != 3) reader.AddError("axes_dims_rope", "it must have 3 entries");
  for (const int64_t axis : config.axes) {
    if (axis % 2 != 0) reader.AddError("axes_dims_rope", "each entry must be even");
  }
  if (std::accumulate(config.axes.begin(), config.axes.end(), int64_t{0}) != config.head_dim) {
    reader.AddError("axes_dims_rope", absl::StrCat("its sum must be attention_head_dim = ", config.head_dim));
  }
  if (config.double_blocks + config.single_blocks < 1) reader.AddError("num_layers", "there must be a block");
  RETURN_IF_ERROR(reader.status());
  return config;
}

}  // namespace tessera::models
