#include "models/text_encoders/text_encoder_config.h"

#include "absl/strings/str_cat.h"

namespace tessera::models {
T5Config ParseT5Config(base::ConfigReader& reader) {
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
  reader.Ignore({"classifier_dropout", "decoder_start_token_id", "dense_act_fn", "dropout_rate", "eos_token_id",
                 "initializer_factor", "is_decoder", "is_encoder_decoder", "is_gated_act", "num_decoder_layers",
                 "n_positions", "output_past", "scale_decoder_outputs", "task_specific_params", "use_cache"});
  return config;
}

ClipConfig ParseClipConfig(base::ConfigReader& reader, bool projected) {
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
  reader.Ignore({"attention_dropout", "bos_token_id", "dropout", "gradient_checkpointing", "initializer_factor",
                 "initializer_range"});
  if (config.width % config.heads != 0) {
    reader.AddError("hidden_size", absl::StrCat("it must be a multiple of num_attention_heads = ", config.heads));
  }
  return config;
}

BertConfig ParseBertConfig(base::ConfigReader& reader) {
  BertConfig config;
  config.vocabulary = reader.Int("vocab_size", 30522, 1, 10'000'000);
  config.width = reader.Int("hidden_size", 768, 1, 65536);
  config.heads = reader.Int("num_attention_heads", 12, 1, 1024);
  config.hidden = reader.Int("intermediate_size", 3072, 1, 1'000'000);
  config.layers = reader.Int("num_hidden_layers", 12, 1, 1024);
  config.positions = reader.Int("max_position_embeddings", 512, 3, 65536);
  config.token_types = reader.Int("type_vocab_size", 2, 1, 1024);
  config.norm_eps = reader.Number("layer_norm_eps", 1e-12, 0, 1);
  reader.Choice("hidden_act", "gelu", {"gelu"});
  reader.Choice("position_embedding_type", "absolute", {"absolute"});
  reader.Ignore({"add_cross_attention", "attention_probs_dropout_prob", "bos_token_id", "classifier_dropout",
                 "directionality", "eos_token_id", "gradient_checkpointing", "hidden_dropout_prob", "initializer_range",
                 "is_decoder", "output_past", "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers",
                 "pooler_size_per_head", "pooler_type", "use_cache"});
  if (config.width % config.heads != 0) {
    reader.AddError("hidden_size", absl::StrCat("it must be a multiple of num_attention_heads = ", config.heads));
  }
  return config;
}

}  // namespace tessera::models
