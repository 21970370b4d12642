#include "models/text_encoders/text_encoder_config.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "models/text_encoders/picture_layout.h"

namespace tessera::models {
namespace {

// Returns the base of rotary positions: published files have it at the top, transformers 5 writes it in
// "rope_parameters". Scaled positions are an error.
double RopeTheta(base::ConfigReader& reader, double usual) {
  double theta = reader.Number("rope_theta", usual, 1, 1e12);
  for (const char* const key : {"rope_scaling", "rope_parameters"}) {
    const base::Json* const parameters = reader.json().Find(key);
    if (parameters == nullptr || parameters->is_null()) continue;
    if (!parameters->is_object()) {
      reader.AddError(key, "it must be an object");
      continue;
    }
    const base::Json* const type = parameters->Find("rope_type");
    const bool is_plain = type == nullptr || (type->AsString() != nullptr && *type->AsString() == "default");
    if (!is_plain) reader.AddError(key, "rope_type must be \"default\"");
    const base::Json* const base = parameters->Find("rope_theta");
    if (base == nullptr) continue;
    theta = base->AsNumber().value_or(0);
    if (theta < 1 || theta > 1e12) reader.AddError(key, "rope_theta must be 1 to 1e12");
  }
  reader.Ignore({"rope_scaling", "rope_parameters"});
  return theta;
}

// Reads the fields that the decoders share. `head_dim` is the default; without one it is the width over the heads.
DecoderConfig ParseDecoder(base::ConfigReader& reader, std::optional<int64_t> head_dim, double rope_theta = 10000) {
  DecoderConfig config;
  config.vocabulary = reader.RequiredInt("vocab_size", 1, 10'000'000);
  config.width = reader.RequiredInt("hidden_size", 1, 65536);
  config.heads = reader.RequiredInt("num_attention_heads", 1, 1024);
  config.kv_heads = reader.Int("num_key_value_heads", config.heads, 1, 1024);
  config.head_dim =
      reader.Int("head_dim", head_dim.value_or(config.width / std::max<int64_t>(config.heads, 1)), 2, 1024);
  config.hidden = reader.RequiredInt("intermediate_size", 1, 1'000'000);
  config.layers = reader.RequiredInt("num_hidden_layers", 1, 1024);
  config.positions = reader.Int("max_position_embeddings", 32768, 1, 10'000'000);
  config.norm_eps = reader.Number("rms_norm_eps", 1e-6, 0, 1);
  config.rope_theta = RopeTheta(reader, rope_theta);
  reader.Choice("hidden_act", "silu", {"silu"});
  if (reader.Bool("use_sliding_window", false)) {
    reader.AddError("use_sliding_window", "a window of attention is not supported; it must be false");
  }
  for (const std::string& type : reader.Strings("layer_types", {})) {
    if (type != "full_attention") reader.AddError("layer_types", "each must be \"full_attention\"");
  }
  reader.Ignore({"attention_dropout", "bos_token_id", "eos_token_id", "initializer_range", "max_window_layers",
                 "model_type", "pad_token_id", "sliding_window", "use_cache"});
  if (config.heads > 0 && config.kv_heads > 0 && config.heads % config.kv_heads != 0) {
    reader.AddError("num_attention_heads",
                    absl::StrCat("it must be a multiple of num_key_value_heads = ", config.kv_heads));
  }
  if (config.head_dim % 2 != 0) reader.AddError("head_dim", "it must be even");
  return config;
}

}  // namespace

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

DecoderConfig ParseQwen3Config(base::ConfigReader& reader) {
  DecoderConfig config = ParseDecoder(reader, /*head_dim=*/128);
  config.qk_norm = true;
  config.qkv_bias = reader.Bool("attention_bias", false);
  if (config.qkv_bias) reader.AddError("attention_bias", "it must be false");
  return config;
}

// Absent fields have the defaults of the reference's class.
DecoderConfig ParseMistral3Config(base::ConfigReader& reader) {
  reader.Ignore({"image_token_id", "image_token_index", "multimodal_projector_bias", "projector_hidden_act",
                 "spatial_merge_size", "text_config", "vision_config", "vision_feature_layer"});
  const base::Json* const nested = reader.json().Find("text_config");
  absl::StatusOr<base::ConfigReader> text = absl::InvalidArgumentError("absent");
  if (nested != nullptr) text = base::ConfigReader::FromJson(*nested, absl::StrCat(reader.name(), ": text_config"));
  DecoderConfig config;
  if (!text.ok()) {
    reader.AddError("text_config", "it must be an object");
    return config;
  }
  const base::Json* const window = nested->Find("sliding_window");
  if (window != nullptr && !window->is_null()) {
    text->AddError("sliding_window", "a window of attention is not supported; it must be null");
  }
  config = ParseDecoder(*text, std::nullopt, /*rope_theta=*/1e9);
  if (const absl::Status read = text->status(); !read.ok()) {
    reader.AddError("text_config", std::string(read.message()));
  }
  return config;
}

DecoderConfig ParseQwen25VlConfig(base::ConfigReader& reader) {
  reader.Ignore({"image_token_id", "text_config", "video_token_id", "vision_config", "vision_end_token_id",
                 "vision_start_token_id", "vision_token_id"});
  DecoderConfig config;
  if (const base::Json* const nested = reader.json().Find("text_config"); nested != nullptr && !nested->is_null()) {
    absl::StatusOr<base::ConfigReader> text =
        base::ConfigReader::FromJson(*nested, absl::StrCat(reader.name(), ": text_config"));
    if (!text.ok()) {
      reader.AddError("text_config", "it must be an object");
      return config;
    }
    config = ParseDecoder(*text, std::nullopt);
    if (const absl::Status read = text->status(); !read.ok()) {
      reader.AddError("text_config", std::string(read.message()));
    }
  } else {
    config = ParseDecoder(reader, std::nullopt);
  }
  config.qkv_bias = true;
  return config;
}

namespace {

// The tower's fields. Files of transformers 4 call the channels in_chans.
VisionConfig ParseVision(base::ConfigReader& reader) {
  VisionConfig config;
  config.layers = reader.RequiredInt("depth", 1, 1024);
  config.width = reader.RequiredInt("hidden_size", 1, 65536);
  config.hidden = reader.RequiredInt("intermediate_size", 1, 1'000'000);
  config.heads = reader.RequiredInt("num_heads", 1, 1024);
  config.out_width = reader.RequiredInt("out_hidden_size", 1, 65536);
  config.channels = reader.Int("in_channels", reader.Int("in_chans", 3, 1, 4096), 3, 3);
  config.frames = reader.Int("temporal_patch_size", 2, 1, 64);
  config.patch = reader.Int("patch_size", 14, 1, 1024);
  reader.Int("spatial_merge_size", kMerge, kMerge, kMerge);
  const int64_t window = reader.Int("window_size", 112, 1, 1'000'000);
  config.window = window / kMerge / std::max<int64_t>(config.patch, 1);
  config.full_layers = reader.Ints("fullatt_block_indexes", {7, 15, 23, 31}, 0, 1023);
  reader.Choice("hidden_act", "silu", {"silu"});
  if (config.window < 1) {
    reader.AddError("window_size", absl::StrCat("it must be at least ", kMerge * config.patch, ", one token"));
  }
  // Rows and columns encode half of the frequencies each, and a frequency rotates two channels.
  if (config.heads > 0 && (config.width % config.heads != 0 || config.width / config.heads % 4 != 0)) {
    reader.AddError("hidden_size",
                    absl::StrCat("its heads, num_heads = ", config.heads, ", must have a multiple of 4 channels each"));
  }
  return config;
}

// Returns "mrope_section", from which form of the file it may be.
std::vector<int64_t> Sections(const base::Json& text) {
  std::vector<int64_t> sections;
  for (const char* const key : {"rope_scaling", "rope_parameters"}) {
    const base::Json* const parameters = text.Find(key);
    const base::Json* const list = parameters != nullptr ? parameters->Find("mrope_section") : nullptr;
    if (list == nullptr) continue;
    sections.clear();
    for (const base::Json& section : list->items()) sections.push_back(section.AsInt().value_or(-1));
  }
  return sections;
}

}  // namespace

VisionLanguageConfig ParseQwen25VlWithVision(base::ConfigReader& reader) {
  VisionLanguageConfig config;
  config.text = ParseQwen25VlConfig(reader);
  config.picture_id = reader.RequiredInt("image_token_id", 0, std::max<int64_t>(config.text.vocabulary - 1, 0));
  const base::Json* const nested = reader.json().Find("text_config");
  const bool is_nested = nested != nullptr && !nested->is_null();
  config.sections = Sections(is_nested ? *nested : reader.json());
  const bool fits = config.sections.size() == 3 && std::ranges::min(config.sections) >= 0 &&
                    2 * (config.sections[0] + config.sections[1] + config.sections[2]) == config.text.head_dim;
  if (!fits) {
    reader.AddError(is_nested ? "text_config" : "rope_scaling",
                    absl::StrCat("mrope_section must have 3 entries, whose sum is half of the head's ",
                                 config.text.head_dim, " channels"));
  }
  absl::StatusOr<base::ConfigReader> vision = absl::InvalidArgumentError("absent");
  if (const base::Json* const tower = reader.json().Find("vision_config"); tower != nullptr) {
    vision = base::ConfigReader::FromJson(*tower, absl::StrCat(reader.name(), ": vision_config"));
  }
  if (!vision.ok()) {
    reader.AddError("vision_config", "it must be an object");
    return config;
  }
  config.vision = ParseVision(*vision);
  if (const absl::Status read = vision->status(); !read.ok()) {
    reader.AddError("vision_config", std::string(read.message()));
  } else if (config.vision.out_width != config.text.width) {
    reader.AddError("vision_config", absl::StrCat("out_hidden_size must be hidden_size = ", config.text.width));
  }
  return config;
}

}  // namespace tessera::models
