#include "models/qwen_image/qwen_image_config.h"

#include <numeric>

#include "absl/strings/str_cat.h"
#include "base/macros/status_macros.h"

namespace tessera::models {

absl::StatusOr<QwenImageConfig> ParseQwenImageConfig(base::ConfigReader& reader) {
  QwenImageConfig config;
  config.heads = reader.Int("num_attention_heads", 24, 1, 1024);
  config.head_dim = reader.Int("attention_head_dim", 128, 2, 1024);
  config.layers = reader.Int("num_layers", 60, 1, 1024);
  config.channels = reader.Int("in_channels", 64, 1, 4096);
  config.patch = reader.Int("patch_size", 2, 1, 64);
  config.text_width = reader.Int("joint_attention_dim", 3584, 1, 65536);
  config.axes = reader.Ints("axes_dims_rope", {16, 56, 56}, 2, 1024);
  const int64_t patch_channels = reader.Int("out_channels", 16, 1, 4096) * config.patch * config.patch;
  if (patch_channels != config.channels) {
    reader.AddError("out_channels",
                    absl::StrCat("its product with patch_size² must be in_channels = ", config.channels));
  }
  if (config.axes.size() != 3) reader.AddError("axes_dims_rope", "it must have 3 entries");
  for (const int64_t axis : config.axes) {
    if (axis % 2 != 0) reader.AddError("axes_dims_rope", "each entry must be even");
  }
  if (std::accumulate(config.axes.begin(), config.axes.end(), int64_t{0}) != config.head_dim) {
    reader.AddError("axes_dims_rope", absl::StrCat("its sum must be attention_head_dim = ", config.head_dim));
  }
  config.clean_references = reader.Bool("zero_cond_t", false);
  for (const char* field : {"guidance_embeds", "use_additional_t_cond", "use_layer3d_rope"}) {
    if (reader.Bool(field, false)) reader.AddError(field, "only false is supported");
  }
  reader.Ignore({"pooled_projection_dim"});  // of older files; the model has no pooled text
  RETURN_IF_ERROR(reader.status());
  return config;
}

}  // namespace tessera::models
