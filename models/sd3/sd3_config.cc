#include "models/sd3/sd3_config.h"

#include "absl/strings/str_cat.h"
#include "base/macros/status_macros.h"

namespace tessera::models {

absl::StatusOr<Sd3Config> ParseSd3Config(base::ConfigReader& reader) {
  Sd3Config config;
  config.heads = reader.Int("num_attention_heads", 18, 1, 1024);
  config.head_dim = reader.Int("attention_head_dim", 64, 2, 1024);
  config.layers = reader.Int("num_layers", 18, 1, 1024);
  config.channels = reader.Int("in_channels", 16, 1, 1024);
  config.patch = reader.Int("patch_size", 2, 1, 64);
  config.sample_size = reader.Int("sample_size", 128, 1, 4096);
  config.position_side = reader.Int("pos_embed_max_size", 96, 1, 4096);
  config.text_width = reader.Int("joint_attention_dim", 4096, 1, 65536);
  config.pooled_width = reader.Int("pooled_projection_dim", 2048, 1, 65536);
  if (reader.Has("qk_norm")) {
    reader.Choice("qk_norm", "rms_norm", {"rms_norm"});
    config.qk_norm = true;
  } else {
    reader.Ignore({"qk_norm"});
  }
  for (const int64_t layer : reader.Ints("dual_attention_layers", {}, 0, config.layers - 1)) {
    config.dual_layers.insert(layer);
  }
  const std::string product = absl::StrCat("num_attention_heads x attention_head_dim = ", config.width());
  if (reader.Int("caption_projection_dim", config.width()) != config.width()) {
    reader.AddError("caption_projection_dim", absl::StrCat("it must be ", product));
  }
  if (reader.Int("out_channels", config.channels) != config.channels) {
    reader.AddError("out_channels", absl::StrCat("it must be in_channels = ", config.channels));
  }
  if (config.sample_size < config.patch) reader.AddError("sample_size", "it must be at least patch_size");
  RETURN_IF_ERROR(reader.status());
  return config;
}

}  // namespace tessera::models
