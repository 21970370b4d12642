#include "models/text_encoders/clip_config.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera {

absl::StatusOr<ClipConfig> ParseClipConfig(ConfigReader& reader, bool projected) {
  ClipConfig config;
  config.vocabulary = reader.Int("vocab_size", 49408, 1, 10'000'000);
  config.width = reader.Int("hidden_size", 512, 1, 65536);
  config.heads = reader.Int("num_attention_heads", 8, 1, 1024);
  config.hidden = reader.Int("intermediate_size", 2048, 1, 1'000'000);
  config.layers = reader.Int("num_hidden_layers", 12, 1, 1024);
  config.positions = reader.Int("max_position_embeddings", 77, 3, 65536);
  const int64_t projection = reader.Int("projection_dim", 512, 1, 65536);
  config.projection = projected ? projection : 0;
  config.quick_gelu = reader.Choice("hidden_act", "quick_gelu", {"quick_gelu", "gelu"}) == "quick_gelu";
  config.norm_eps = reader.Number("layer_norm_eps", 1e-5, 0, 1);
  config.end_id = reader.Int("eos_token_id", 49407, 0, 10'000'000);
  reader.Ignore({"architectures", "attention_dropout", "bos_token_id", "dropout", "dtype", "gradient_checkpointing",
                 "initializer_factor", "initializer_range", "model_type", "pad_token_id", "tie_word_embeddings",
                 "torch_dtype", "transformers_version"});
  if (config.width % config.heads != 0) {
    reader.AddError("hidden_size", absl::StrCat("it must be a multiple of num_attention_heads = ", config.heads));
  }
  RETURN_IF_ERROR(reader.status());
  return config;
}

}  // namespace tessera
