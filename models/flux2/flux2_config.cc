#include "models/flux2/flux2_config.h"

#include <numeric>

#include "absl/strings/str_cat.h"
#include "base/macros/status_macros.h"

namespace tessera::models {

// Absent fields have the defaults of the reference's class, which are those of FLUX.2-dev.
absl::StatusOr<Flux2Config> ParseFlux2Config(base::ConfigReader& reader) {
  Flux2Config config;
  config.heads = reader.Int("num_attention_heads", 48, 1, 1024);
  config.head_dim = reader.Int("attention_head_dim", 128, 2, 1024);
  config.double_blocks = reader.Int("num_layers", 8, 0, 1024);
  config.single_blocks = reader.Int("num_single_layers", 48, 0, 1024);
  config.channels = reader.Int("in_channels", 128, 4, 4096);
  config.text_width = reader.Int("joint_attention_dim", 15360, 1, 65536);
  config.sinusoid_channels = reader.Int("timestep_guidance_channels", 256, 2, 65536);
  config.guidance = reader.Bool("guidance_embeds", true);
  config.axes = reader.Ints("axes_dims_rope", {32, 32, 32, 32}, 2, 1024);
  config.theta = reader.Number("rope_theta", 2000, 1, 1e9);
  config.eps = reader.Number("eps", 1e-6, 1e-12, 1);
  const double mlp_ratio = reader.Number("mlp_ratio", 3, 0.01, 64);
  config.mlp_width = static_cast<int64_t>(static_cast<double>(config.width()) * mlp_ratio);
  if (config.mlp_width < 1) reader.AddError("mlp_ratio", "its product with the width must be at least 1");
  if (config.channels % 4 != 0) reader.AddError("in_channels", "it must be a multiple of 4: tokens are 2 x 2 latents");
  if (reader.Int("out_channels", config.channels) != config.channels) {
    reader.AddError("out_channels", absl::StrCat("it must be in_channels = ", config.channels, ", or null"));
  }
  reader.Int("patch_size", 1, 1, 1);
  if (config.sinusoid_channels % 2 != 0) reader.AddError("timestep_guidance_channels", "it must be even");
  if (config.axes.size() != 4) reader.AddError("axes_dims_rope", "it must have 4 entries");
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
