#include "models/hunyuandit/hunyuandit_config.h"

#include "absl/strings/str_cat.h"
#include "base/macros/status_macros.h"

namespace tessera::models {

absl::StatusOr<HunyuanConfig> ParseHunyuanConfig(base::ConfigReader& reader) {
  HunyuanConfig config;
  config.heads = reader.Int("num_attention_heads", 16, 1, 1024);
  config.head_dim = reader.Int("attention_head_dim", 88, 4, 1024);
  config.layers = reader.Int("num_layers", 28, 2, 1024);
  config.channels = reader.RequiredInt("in_channels", 1, 1024);
  config.patch = reader.RequiredInt("patch_size", 1, 64);
  config.sample_size = reader.Int("sample_size", 32, 1, 4096);
  config.hidden = static_cast<int64_t>(static_cast<double>(config.width()) * reader.Number("mlp_ratio", 4.0, 0.01, 64));
  config.out_channels = config.channels * (reader.Bool("learn_sigma", true) ? 2 : 1);
  config.bert_width = reader.Int("cross_attention_dim", 1024, 1, 65536);
  config.t5_width = reader.Int("cross_attention_dim_t5", 2048, 1, 65536);
  config.pooled_width = reader.Int("pooled_projection_dim", 1024, 1, 65536);
  config.bert_tokens = reader.Int("text_len", 77, 3, 65536);
  config.t5_tokens = reader.Int("text_len_t5", 256, 1, 65536);
  config.style_and_size = reader.Bool("use_style_cond_and_image_meta_size", true);
  reader.Choice("activation_fn", "gelu-approximate", {"gelu-approximate"});
  reader.Choice("norm_type", "layer_norm", {"layer_norm"});
  if (reader.Int("hidden_size", 1152) != config.width()) {
    reader.AddError("hidden_size",
                    absl::StrCat("it must be num_attention_heads x attention_head_dim = ", config.width()));
  }
  if (config.layers % 2 != 0) {
    reader.AddError("num_layers", "it must be even: blocks of the second half read what the first half kept");
  }
  if (config.head_dim % 4 != 0) reader.AddError("attention_head_dim", "it must be a multiple of 4");
  if (config.t5_width % 8 != 0)
    reader.AddError("cross_attention_dim_t5", "it must be a multiple of 8, the pool's heads");
  if (config.hidden < 1) reader.AddError("mlp_ratio", "it leaves the MLP without channels");
  RETURN_IF_ERROR(reader.status());
  return config;
}

std::vector<parallel::LongSkip> HunyuanConfig::long_skips() const {
  std::vector<parallel::LongSkip> skips;
  const int blocks = static_cast<int>(layers);
  for (int i = 0; i < blocks / 2 - 1; ++i) skips.push_back({.from = i, .to = blocks - 1 - i});
  return skips;
}

}  // namespace tessera::models
