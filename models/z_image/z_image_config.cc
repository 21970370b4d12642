#include "models/z_image/z_image_config.h"

#include <numeric>

#include "absl/strings/str_cat.h"
#include "base/macros/status_macros.h"

namespace tessera::models {

absl::StatusOr<ZImageConfig> ParseZImageConfig(base::ConfigReader& reader) {
  ZImageConfig config;
  config.width = reader.Int("dim", 3840, 2, 65536);
  config.heads = reader.Int("n_heads", 30, 1, 1024);
  config.layers = reader.Int("n_layers", 30, 1, 1024);
  config.refiners = reader.Int("n_refiner_layers", 2, 0, 64);
  config.channels = reader.Int("in_channels", 16, 1, 4096);
  config.text_width = reader.Int("cap_feat_dim", 2560, 1, 65536);
  config.norm_eps = reader.Number("norm_eps", 1e-5, 0, 1);
  config.timestep_scale = reader.Number("t_scale", 1000, 1e-3, 1e6);
  config.rope_theta = reader.Number("rope_theta", 256, 1, 1e12);
  config.axes = reader.Ints("axes_dims", {32, 48, 48}, 2, 1024);
  config.axis_lengths = reader.Ints("axes_lens", {1024, 512, 512}, 1, 1'000'000);
  reader.Ignore({"n_kv_heads"});  // the reference does not use it
  if (reader.Ints("all_patch_size", {ZImageConfig::kPatch}) != std::vector{ZImageConfig::kPatch}) {
    reader.AddError("all_patch_size", absl::StrCat("it must be [", ZImageConfig::kPatch, "]"));
  }
  if (reader.Ints("all_f_patch_size", {1}) != std::vector<int64_t>{1}) {
    reader.AddError("all_f_patch_size", "it must be [1]");
  }
  if (!reader.Bool("qk_norm", true)) reader.AddError("qk_norm", "it must be true");
  if (reader.Has("siglip_feat_dim")) {
    reader.AddError("siglip_feat_dim", "features of a vision encoder are not supported; it must be null");
  }
  reader.Ignore({"siglip_feat_dim"});
  if (config.width % config.heads != 0) {
    reader.AddError("dim", absl::StrCat("it must be a multiple of n_heads = ", config.heads));
  }
  if (config.axes.size() != 3) reader.AddError("axes_dims", "it must have 3 entries");
  if (config.axis_lengths.size() != 3) reader.AddError("axes_lens", "it must have 3 entries");
  for (const int64_t axis : config.axes) {
    if (axis % 2 != 0) reader.AddError("axes_dims", "each entry must be even");
  }
  const int64_t channels = std::accumulate(config.axes.begin(), config.axes.end(), int64_t{0});
  if (channels * config.heads != config.width) {
    reader.AddError("axes_dims", absl::StrCat("its sum must be dim / n_heads = ", config.width / config.heads));
  }
  RETURN_IF_ERROR(reader.status());
  return config;
}

}  // namespace tessera::models
