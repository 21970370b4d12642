#include "models/text_encoders/bert_config.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera {

absl::StatusOr<BertConfig> ParseBertConfig(ConfigReader& reader) {
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
  reader.Ignore({"add_cross_attention",
                 "architectures",
                 "attention_probs_dropout_prob",
                 "bos_token_id",
                 "classifier_dropout",
                 "directionality",
                 "dtype",
                 "eos_token_id",
                 "gradient_checkpointing",
                 "hidden_dropout_prob",
                 "initializer_range",
                 "is_decoder",
                 "model_type",
                 "output_past",
                 "pad_token_id",
                 "pooler_fc_size",
                 "pooler_num_attention_heads",
                 "pooler_num_fc_layers",
                 "pooler_size_per_head",
                 "pooler_type",
                 "tie_word_embeddings",
                 "torch_dtype",
                 "transformers_version",
                 "use_cache"});
  if (config.width % config.heads != 0) {
    reader.AddError("hidden_size", absl::StrCat("it must be a multiple of num_attention_heads = ", config.heads));
  }
  RETURN_IF_ERROR(reader.status());
  return config;
}

}  // namespace tessera
