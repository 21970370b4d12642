#include "models/text_encoders/t5_config.h"

#include "base/status_macros.h"

namespace tessera {

absl::StatusOr<T5Config> ParseT5Config(ConfigReader& reader) {
  T5Config config;
  config.vocabulary = reader.Int("vocab_size", 32128, 1, 10'000'000);
  config.width = reader.Int("d_model", 512, 1, 65536);
  config.head_dim = reader.Int("d_kv", 64, 1, 1024);
  config.heads = reader.Int("num_heads", 8, 1, 1024);
  config.hidden = reader.Int("d_ff", 2048, 1, 1'000'000);
  config.layers = reader.Int("num_layers", 6, 1, 1024);
  config.buckets = reader.Int("relative_attention_num_buckets", 32, 4, 4096);
  config.max_distance = reader.Int("relative_attention_max_distance", 128, 2, 1'000'000);
  config.norm_eps = reader.Number("layer_norm_epsilon", 1e-6);
  reader.Choice("feed_forward_proj", "relu", {"gated-gelu"});  // T5 v1.1, as image models use it
  reader.Ignore({"architectures",
                 "classifier_dropout",
                 "decoder_start_token_id",
                 "dense_act_fn",
                 "dropout_rate",
                 "dtype",
                 "torch_dtype",
                 "eos_token_id",
                 "initializer_factor",
                 "is_decoder",
                 "is_encoder_decoder",
                 "is_gated_act",
                 "model_type",
                 "num_decoder_layers",
                 "n_positions",
                 "output_past",
                 "pad_token_id",
                 "scale_decoder_outputs",
                 "task_specific_params",
                 "tie_word_embeddings",
                 "transformers_version",
                 "use_cache"});
  RETURN_IF_ERROR(reader.status());
  return config;
}

}  // namespace tessera
