#include "models/weights/derived_config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/json/json_writer.h"
#include "base/macros/status_macros.h"

namespace tessera::models {
namespace {

constexpr int64_t kMaxBlocks = 1024;

base::Json ParsedConfig(const std::string& text) {
  return base::ParseJson(text, "configuration").value_or(base::Json());
}

// Reads shapes and remembers the first tensor that is missing.
class Shapes {
 public:
  explicit Shapes(const TensorShapes& shapes) : shapes_(shapes) {}

  bool Has(std::string_view name) const { return shapes_.contains(name); }

  // The size of a tensor in one dimension; 1 if there is no such tensor or dimension.
  int64_t Size(const std::string& name, size_t dim) {
    const auto found = shapes_.find(name);
    if (found != shapes_.end() && dim < found->second.size()) return std::max<int64_t>(found->second[dim], 1);
    if (missing_.empty()) missing_ = name;
    return 1;
  }

  // The size of the first of the tensors that exists.
  std::optional<int64_t> SizeOfAny(std::initializer_list<std::string> names, size_t dim) {
    for (const std::string& name : names) {
      if (Has(name)) return Size(name, dim);
    }
    return std::nullopt;
  }

  // The number of blocks PREFIX0., PREFIX1., … without a gap, of which any tensor exists.
  int64_t Blocks(const std::string& prefix) const {
    int64_t count = 0;
    while (count < kMaxBlocks && AnyBegins(absl::StrCat(prefix, count, "."))) ++count;
    return count;
  }

  bool AnyBegins(const std::string& prefix) const {
    const auto found = shapes_.lower_bound(prefix);
    return found != shapes_.end() && found->first.starts_with(prefix);
  }

  const std::string& missing() const { return missing_; }

 private:
  const TensorShapes& shapes_;
  std::string missing_;
};

// Writes one object. Every member has a method of its type.
class ConfigWriter {
 public:
  explicit ConfigWriter(std::string_view class_name) {
    writer_.BeginObject();
    if (!class_name.empty()) Text("_class_name", class_name);
  }
  ConfigWriter& Int(std::string_view key, int64_t value) { return writer_.Key(key).Int(value), *this; }
  ConfigWriter& Ints(std::string_view key, const std::vector<int64_t>& values) {
    return writer_.Key(key).Ints(values), *this;
  }
  ConfigWriter& Number(std::string_view key, double value) { return writer_.Key(key).Number(value), *this; }
  ConfigWriter& Bool(std::string_view key, bool value) { return writer_.Key(key).Bool(value), *this; }
  ConfigWriter& Text(std::string_view key, std::string_view value) { return writer_.Key(key).String(value), *this; }
  ConfigWriter& Null(std::string_view key) { return writer_.Key(key).Json("null"), *this; }
  ConfigWriter& Json(std::string_view key, std::string_view json) { return writer_.Key(key).Json(json), *this; }
  std::string Finish() { return writer_.EndObject(), writer_.text(); }

 private:
  base::JsonWriter writer_;
};

// Divides a head's channels among three axes of positions as the published models do: 16, 56, 56 of 128 (FLUX.1,
// Qwen-Image) for `eighths` 3.5, or 32, 48, 48 (Z-Image) for 3. Every axis is even.
std::vector<int64_t> ThreeAxes(int64_t head_dim, double eighths) {
  const int64_t side = static_cast<int64_t>(std::floor(static_cast<double>(head_dim) * eighths / 16)) * 2;
  return {head_dim - 2 * side, side, side};
}

// The number of heads of `width` channels, whose width is the published one if that divides.
int64_t HeadsOf(int64_t width, int64_t published_head_dim) {
  return width % published_head_dim == 0 ? width / published_head_dim : 1;
}

std::string FluxConfigOf(Shapes& shapes) {
  const int64_t width = shapes.Size("x_embedder.weight", 0), channels = shapes.Size("x_embedder.weight", 1);
  const int64_t head_dim =
      shapes.SizeOfAny({"transformer_blocks.0.attn.norm_q.weight", "single_transformer_blocks.0.attn.norm_q.weight"}, 0)
          .value_or(128);
  const int64_t out = shapes.Size("proj_out.weight", 0);
  ConfigWriter config("FluxTransformer2DModel");
  config.Int("attention_head_dim", head_dim)
      .Ints("axes_dims_rope", ThreeAxes(head_dim, 3.5))
      .Bool("guidance_embeds", shapes.AnyBegins("time_text_embed.guidance_embedder."))
      .Int("in_channels", channels)
      .Int("joint_attention_dim", shapes.Size("context_embedder.weight", 1))
      .Int("num_attention_heads", width / head_dim)
      .Int("num_layers", shapes.Blocks("transformer_blocks."))
      .Int("num_single_layers", shapes.Blocks("single_transformer_blocks."))
      .Int("patch_size", 1)
      .Int("pooled_projection_dim", shapes.Size("time_text_embed.text_embedder.linear_1.weight", 1));
  if (out == channels) {
    config.Null("out_channels");
  } else {
    config.Int("out_channels", out);
  }
  return config.Finish();
}

std::string Flux2ConfigOf(Shapes& shapes) {
  const int64_t width = shapes.Size("x_embedder.weight", 0);
  const int64_t head_dim =
      shapes.SizeOfAny({"transformer_blocks.0.attn.norm_q.weight", "single_transformer_blocks.0.attn.norm_q.weight"}, 0)
          .value_or(128);
  const int64_t axis = head_dim / 4;
  // The first product of an MLP makes a gate and a value.
  const double mlp = static_cast<double>(shapes.Size("transformer_blocks.0.ff.linear_in.weight", 0)) / 2;
  return ConfigWriter("Flux2Transformer2DModel")
      .Int("attention_head_dim", head_dim)
      .Ints("axes_dims_rope", {axis, axis, axis, axis})
      .Number("eps", 1e-6)
      .Bool("guidance_embeds", shapes.AnyBegins("time_guidance_embed.guidance_embedder."))
      .Int("in_channels", shapes.Size("x_embedder.weight", 1))
      .Int("joint_attention_dim", shapes.Size("context_embedder.weight", 1))
      .Number("mlp_ratio", mlp / static_cast<double>(width))
      .Int("num_attention_heads", width / head_dim)
      .Int("num_layers", shapes.Blocks("transformer_blocks."))
      .Int("num_single_layers", shapes.Blocks("single_transformer_blocks."))
      .Null("out_channels")
      .Int("patch_size", 1)
      .Int("rope_theta", 2000)
      .Int("timestep_guidance_channels", shapes.Size("time_guidance_embed.timestep_embedder.linear_1.weight", 1))
      .Finish();
}

std::string Sd3ConfigOf(Shapes& shapes) {
  const int64_t width = shapes.Size("pos_embed.proj.weight", 0), patch = shapes.Size("pos_embed.proj.weight", 2);
  const int64_t layers = shapes.Blocks("transformer_blocks.");
  // Without norms of heads, a head has the published 64 channels.
  const std::optional<int64_t> normed = shapes.SizeOfAny({"transformer_blocks.0.attn.norm_q.weight"}, 0);
  const int64_t head_dim = normed.value_or(width / HeadsOf(width, 64));
  std::vector<int64_t> dual;
  for (int64_t layer = 0; layer < layers; ++layer) {
    if (shapes.AnyBegins(absl::StrCat("transformer_blocks.", layer, ".attn2."))) dual.push_back(layer);
  }
  const auto side =
      static_cast<int64_t>(std::llround(std::sqrt(static_cast<double>(shapes.Size("pos_embed.pos_embed", 1)))));
  ConfigWriter config("SD3Transformer2DModel");
  config.Int("attention_head_dim", head_dim)
      .Int("caption_projection_dim", shapes.Size("context_embedder.weight", 0))
      .Ints("dual_attention_layers", dual)
      .Int("in_channels", shapes.Size("pos_embed.proj.weight", 1))
      .Int("joint_attention_dim", shapes.Size("context_embedder.weight", 1))
      .Int("num_attention_heads", width / head_dim)
      .Int("num_layers", layers)
      .Int("out_channels", shapes.Size("proj_out.weight", 0) / (patch * patch))
      .Int("patch_size", patch)
      .Int("pooled_projection_dim", shapes.Size("time_text_embed.text_embedder.linear_1.weight", 1))
      .Int("pos_embed_max_size", side)
      .Int("sample_size", std::min<int64_t>(128, side * patch));
  if (normed) {
    config.Text("qk_norm", "rms_norm");
  } else {
    config.Null("qk_norm");
  }
  return config.Finish();
}

std::string ZImageConfigOf(Shapes& shapes) {
  const int64_t width = shapes.Size("all_x_embedder.2-1.weight", 0);
  const int64_t head_dim = shapes.Size("layers.0.attention.norm_q.weight", 0);
  return ConfigWriter("ZImageTransformer2DModel")
      .Ints("all_f_patch_size", {1})
      .Ints("all_patch_size", {2})
      .Ints("axes_dims", ThreeAxes(head_dim, 3))
      .Ints("axes_lens", {1536, 512, 512})
      .Int("cap_feat_dim", shapes.Size("cap_embedder.0.weight", 0))
      .Int("dim", width)
      .Int("in_channels", shapes.Size("all_x_embedder.2-1.weight", 1) / 4)
      .Int("n_heads", width / head_dim)
      .Int("n_kv_heads", width / head_dim)
      .Int("n_layers", shapes.Blocks("layers."))
      .Int("n_refiner_layers", shapes.Blocks("noise_refiner."))
      .Number("norm_eps", 1e-5)
      .Bool("qk_norm", true)
      .Number("rope_theta", 256)
      .Null("siglip_feat_dim")
      .Number("t_scale", 1000)
      .Finish();
}

std::string QwenImageConfigOf(Shapes& shapes) {
  const int64_t width = shapes.Size("img_in.weight", 0);
  const int64_t head_dim = shapes.Size("transformer_blocks.0.attn.norm_q.weight", 0);
  constexpr int64_t kPatch = 2;
  return ConfigWriter("QwenImageTransformer2DModel")
      .Int("attention_head_dim", head_dim)
      .Ints("axes_dims_rope", ThreeAxes(head_dim, 3.5))
      .Bool("guidance_embeds", false)
      .Int("in_channels", shapes.Size("img_in.weight", 1))
      .Int("joint_attention_dim", shapes.Size("txt_in.weight", 1))
      .Int("num_attention_heads", width / head_dim)
      .Int("num_layers", shapes.Blocks("transformer_blocks."))
      .Int("out_channels", shapes.Size("proj_out.weight", 0) / (kPatch * kPatch))
      .Int("patch_size", kPatch)
      .Bool("use_additional_t_cond", false)
      .Bool("use_layer3d_rope", false)
      .Bool("zero_cond_t", shapes.Has(kZeroConditionMark))  // ComfyUI marks the files of Qwen-Image-Edit 2511
      .Finish();
}

// The number of groups of a norm: 32 as published, fewer where the narrowest layer has less than 64 channels.
int64_t GroupsOf(const std::vector<int64_t>& widths) {
  const int64_t narrowest = *std::ranges::min_element(widths);
  return std::max<int64_t>(1, std::gcd(int64_t{32}, std::max<int64_t>(1, narrowest / 2)));
}

std::string Repeated(std::string_view text, size_t count) {
  base::JsonWriter writer;
  writer.BeginArray();
  for (size_t i = 0; i < count; ++i) writer.String(text);
  return writer.EndArray(), writer.text();
}

// Returns the fields that AutoencoderKL and AutoencoderKLFlux2 share.
ConfigWriter NetworksOf(std::string_view class_name, Shapes& shapes) {
  std::vector<int64_t> widths, decoder;
  const int64_t levels = shapes.Blocks("encoder.down_blocks.");
  for (int64_t level = 0; level < levels; ++level) {
    widths.push_back(shapes.Size(absl::StrCat("encoder.down_blocks.", level, ".resnets.0.conv1.weight"), 0));
    decoder.push_back(
        shapes.Size(absl::StrCat("decoder.up_blocks.", levels - 1 - level, ".resnets.0.conv1.weight"), 0));
  }
  if (widths.empty()) widths.push_back(shapes.Size("encoder.down_blocks.0.resnets.0.conv1.weight", 0));
  ConfigWriter config(class_name);
  config.Text("act_fn", "silu")
      .Ints("block_out_channels", widths)
      .Json("down_block_types", Repeated("DownEncoderBlock2D", widths.size()))
      .Int("in_channels", shapes.Size("encoder.conv_in.weight", 1))
      .Int("latent_channels", shapes.Size("decoder.conv_in.weight", 1))
      .Int("layers_per_block", std::max<int64_t>(1, shapes.Blocks("encoder.down_blocks.0.resnets.")))
      .Bool("mid_block_add_attention", shapes.AnyBegins("decoder.mid_block.attentions.0."))
      .Int("norm_num_groups", GroupsOf(widths))
      .Int("out_channels", shapes.Size("decoder.conv_out.weight", 0))
      .Int("sample_size", 1024)
      .Json("up_block_types", Repeated("UpDecoderBlock2D", widths.size()))
      .Bool("use_post_quant_conv", shapes.AnyBegins("post_quant_conv."))
      .Bool("use_quant_conv", shapes.AnyBegins("quant_conv."));
  if (class_name == "AutoencoderKLFlux2") {
    if (decoder == widths) {
      config.Null("decoder_block_out_channels");
    } else {
      config.Ints("decoder_block_out_channels", decoder);
    }
  }
  return config;
}

// Source of the scales: vae/config.json of stabilityai/stable-diffusion-3.5-large, and of black-forest-labs/FLUX.1-dev,
// whose autoencoder Z-Image has, too.
std::string AutoencoderConfigOf(Shapes& shapes, std::string_view pipeline) {
  const bool is_sd3 = pipeline == "StableDiffusion3Pipeline";
  return NetworksOf("AutoencoderKL", shapes)
      .Bool("force_upcast", true)
      .Null("latents_mean")
      .Null("latents_std")
      .Number("scaling_factor", is_sd3 ? 1.5305 : 0.3611)
      .Number("shift_factor", is_sd3 ? 0.0609 : 0.1159)
      .Finish();
}

std::string Flux2AutoencoderConfigOf(Shapes& shapes) {
  return NetworksOf("AutoencoderKLFlux2", shapes)
      .Number("batch_norm_eps", 1e-4)
      .Number("batch_norm_momentum", 0.1)
      .Ints("patch_size", {2, 2})
      .Finish();
}

// Source: vae/config.json of Qwen/Qwen-Image.
constexpr std::string_view kQwenLatentMeans =
    "[-0.7571, -0.7089, -0.9113, 0.1075, -0.1745, 0.9653, -0.1517, 1.5508, 0.4134, -0.0715, 0.5517, -0.3632, -0.1922, "
    "-0.9497, 0.2503, -0.2921]";
constexpr std::string_view kQwenLatentDeviations =
    "[2.8184, 1.4541, 2.3275, 2.6558, 1.2196, 1.7708, 2.6052, 2.0743, 3.2687, 2.1526, 2.8652, 1.5579, 1.6382, 1.1253, "
    "2.8251, 1.9160]";

std::string QwenAutoencoderConfigOf(Shapes& shapes) {
  // The encoder's layers are in one list: the residual blocks of a level, then what reduces its size.
  const int64_t base = shapes.Size("encoder.conv_in.weight", 0);
  std::vector<int64_t> multipliers;
  std::string halves_time = "[";
  int64_t residuals = 0, first_residuals = 0, width = base;
  const int64_t layers = shapes.Blocks("encoder.down_blocks.");
  const auto end_level = [&] {
    multipliers.push_back(std::max<int64_t>(1, width / base));
    if (first_residuals == 0) first_residuals = residuals;
    residuals = 0;
  };
  for (int64_t layer = 0; layer < layers; ++layer) {
    const std::string name = absl::StrCat("encoder.down_blocks.", layer, ".");
    if (shapes.AnyBegins(name + "resample.")) {
      end_level();
      absl::StrAppend(&halves_time, halves_time.size() > 1 ? ", " : "",
                      shapes.AnyBegins(name + "time_conv.") ? "true" : "false");
    } else {
      width = shapes.Size(name + "conv1.weight", 0);
      ++residuals;
    }
  }
  end_level();
  return ConfigWriter("AutoencoderKLQwenImage")
      .Json("attn_scales", "[]")
      .Int("base_dim", base)
      .Ints("dim_mult", multipliers)
      .Number("dropout", 0)
      .Int("input_channels", shapes.Size("encoder.conv_in.weight", 1))
      .Json("latents_mean", kQwenLatentMeans)
      .Json("latents_std", kQwenLatentDeviations)
      .Int("num_res_blocks", std::max<int64_t>(1, first_residuals))
      .Json("temperal_downsample", halves_time + "]")
      .Int("z_dim", shapes.Size("decoder.conv_in.weight", 1))
      .Finish();
}

// Heads have 64 channels in both published models. CLIP-G uses the exact GELU.
std::string ClipConfigOf(Shapes& shapes, const std::string& class_name, std::string_view pipeline,
                         std::string_view component) {
  const int64_t width = shapes.Size("text_model.embeddings.token_embedding.weight", 1);
  const bool is_second = pipeline == "StableDiffusion3Pipeline" && component == "text_encoder_2";
  const std::optional<int64_t> projection = shapes.SizeOfAny({"text_projection.weight"}, 0);
  return ConfigWriter("")
      .Json("architectures", absl::StrCat("[\"", class_name, "\"]"))
      .Int("bos_token_id", 0)
      .Int("eos_token_id", 2)
      .Text("hidden_act", is_second ? "gelu" : "quick_gelu")
      .Int("hidden_size", width)
      .Int("intermediate_size", shapes.Size("text_model.encoder.layers.0.mlp.fc1.weight", 0))
      .Number("layer_norm_eps", 1e-5)
      .Int("max_position_embeddings", shapes.Size("text_model.embeddings.position_embedding.weight", 0))
      .Text("model_type", "clip_text_model")
      .Int("num_attention_heads", HeadsOf(width, 64))
      .Int("num_hidden_layers", shapes.Blocks("text_model.encoder.layers."))
      .Int("pad_token_id", 1)
      .Int("projection_dim", projection.value_or(width))
      .Int("vocab_size", shapes.Size("text_model.embeddings.token_embedding.weight", 0))
      .Finish();
}

std::string T5ConfigOf(Shapes& shapes) {
  const std::string attention = "encoder.block.0.layer.0.SelfAttention.";
  const std::string table = shapes.Has("shared.weight") ? "shared.weight" : "encoder.embed_tokens.weight";
  const int64_t buckets = shapes.Size(attention + "relative_attention_bias.weight", 0);
  const int64_t heads = shapes.Size(attention + "relative_attention_bias.weight", 1);
  const int64_t layers = shapes.Blocks("encoder.block.");
  return ConfigWriter("")
      .Json("architectures", R"(["T5EncoderModel"])")
      .Int("d_ff", shapes.Size("encoder.block.0.layer.1.DenseReluDense.wi_0.weight", 0))
      .Int("d_kv", shapes.Size(attention + "q.weight", 0) / heads)
      .Int("d_model", shapes.Size(table, 1))
      .Text("dense_act_fn", "gelu_new")
      .Text("feed_forward_proj", "gated-gelu")
      .Number("layer_norm_epsilon", 1e-6)
      .Text("model_type", "t5")
      .Int("num_heads", heads)
      .Int("num_layers", layers)
      .Int("relative_attention_max_distance", 128)
      .Int("relative_attention_num_buckets", buckets)
      .Bool("tie_word_embeddings", false)
      .Int("vocab_size", shapes.Size(table, 0))
      .Finish();
}

// What the published decoders of a class have in common and no shape shows.
struct DecoderNumbers {
  int64_t head_dim = 128, positions = 32768;
  double norm_eps = 1e-6, rope_theta = 1e6;
};

// Writes the fields of a decoder. `prefix` is before its "layers.".
void AddDecoder(ConfigWriter& config, Shapes& shapes, const std::string& prefix, const DecoderNumbers& numbers) {
  const std::string layer = prefix + "layers.0.", attention = layer + "self_attn.";
  const int64_t head_dim = shapes.SizeOfAny({attention + "q_norm.weight"}, 0).value_or(numbers.head_dim);
  config.Int("head_dim", head_dim)
      .Text("hidden_act", "silu")
      .Int("hidden_size", shapes.Size(prefix + "embed_tokens.weight", 1))
      .Int("intermediate_size", shapes.Size(layer + "mlp.gate_proj.weight", 0))
      .Int("max_position_embeddings", numbers.positions)
      .Int("num_attention_heads", std::max<int64_t>(1, shapes.Size(attention + "q_proj.weight", 0) / head_dim))
      .Int("num_hidden_layers", shapes.Blocks(prefix + "layers."))
      .Int("num_key_value_heads", std::max<int64_t>(1, shapes.Size(attention + "k_proj.weight", 0) / head_dim))
      .Number("rms_norm_eps", numbers.norm_eps)
      .Number("rope_theta", numbers.rope_theta)
      .Int("vocab_size", shapes.Size(prefix + "embed_tokens.weight", 0));
}

std::string DecoderPrefix(const Shapes& shapes) {
  for (const char* prefix : {"model.", "model.language_model.", "language_model.model."}) {
    if (shapes.AnyBegins(absl::StrCat(prefix, "layers.0."))) return prefix;
  }
  return "model.";
}

// Source: text_encoder/config.json of Tongyi-MAI/Z-Image-Turbo and black-forest-labs/FLUX.2-klein-4B.
std::string Qwen3ConfigOf(Shapes& shapes) {
  ConfigWriter config("");
  config.Json("architectures", R"(["Qwen3ForCausalLM"])").Bool("attention_bias", false).Text("model_type", "qwen3");
  AddDecoder(config, shapes, DecoderPrefix(shapes), {.positions = 40960});
  return config.Bool("tie_word_embeddings", !shapes.Has("lm_head.weight")).Finish();
}

// Source: text_encoder/config.json of Qwen/Qwen-Image.
std::string Qwen25VlConfigOf(Shapes& shapes) {
  ConfigWriter text("");
  text.Text("model_type", "qwen2_5_vl_text");
  AddDecoder(text, shapes, DecoderPrefix(shapes), {.positions = 128000});
  ConfigWriter config("");
  config.Json("architectures", R"(["Qwen2_5_VLForConditionalGeneration"])")
      .Int("image_token_id", 151655)
      .Text("model_type", "qwen2_5_vl")
      .Json("text_config", text.Finish())
      .Int("video_token_id", 151656)
      .Int("vision_end_token_id", 151653)
      .Int("vision_start_token_id", 151652);
  if (shapes.AnyBegins("visual.blocks.0.")) {
    const int64_t layers = shapes.Blocks("visual.blocks.");
    const int64_t width = shapes.Size("visual.patch_embed.proj.weight", 0);
    std::vector<int64_t> whole;  // every eighth layer attends over the whole picture
    for (int64_t layer = 7; layer < layers; layer += 8) whole.push_back(layer);
    if (whole.empty()) whole.push_back(layers - 1);
    config.Json("vision_config", ConfigWriter("")
                                     .Int("depth", layers)
                                     .Ints("fullatt_block_indexes", whole)
                                     .Text("hidden_act", "silu")
                                     .Int("hidden_size", width)
                                     .Int("in_channels", shapes.Size("visual.patch_embed.proj.weight", 1))
                                     .Int("intermediate_size", shapes.Size("visual.blocks.0.mlp.gate_proj.weight", 0))
                                     .Text("model_type", "qwen2_5_vl")
                                     .Int("num_heads", HeadsOf(width, 80))
                                     .Int("out_hidden_size", shapes.Size("visual.merger.mlp.2.weight", 0))
                                     .Int("patch_size", shapes.Size("visual.patch_embed.proj.weight", 3))
                                     .Int("spatial_merge_size", 2)
                                     .Int("temporal_patch_size", shapes.Size("visual.patch_embed.proj.weight", 2))
                                     .Int("window_size", 112)
                                     .Finish());
  }
  return config.Finish();
}

// Source: text_encoder/config.json of black-forest-labs/FLUX.2-dev. The number of layers is the file's own: 40, or 30
// in files without those that the pipeline does not use.
std::string MistralConfigOf(Shapes& shapes) {
  ConfigWriter text("");
  text.Text("model_type", "mistral");
  AddDecoder(text, shapes, DecoderPrefix(shapes), {.positions = 131072, .norm_eps = 1e-5, .rope_theta = 1e9});
  return ConfigWriter("")
      .Json("architectures", R"(["Mistral3ForConditionalGeneration"])")
      .Int("image_token_index", 10)
      .Text("model_type", "mistral3")
      .Json("text_config", text.Finish())
      .Finish();
}

// Returns the configuration's text; empty for a class that is not known.
std::string ConfigTextOf(const std::string& class_name, Shapes& shapes, std::string_view pipeline,
                         std::string_view component) {
  if (class_name == "FluxTransformer2DModel") return FluxConfigOf(shapes);
  if (class_name == "Flux2Transformer2DModel") return Flux2ConfigOf(shapes);
  if (class_name == "SD3Transformer2DModel") return Sd3ConfigOf(shapes);
  if (class_name == "ZImageTransformer2DModel") return ZImageConfigOf(shapes);
  if (class_name == "QwenImageTransformer2DModel") return QwenImageConfigOf(shapes);
  if (class_name == "AutoencoderKL") return AutoencoderConfigOf(shapes, pipeline);
  if (class_name == "AutoencoderKLFlux2") return Flux2AutoencoderConfigOf(shapes);
  if (class_name == "AutoencoderKLQwenImage") return QwenAutoencoderConfigOf(shapes);
  if (class_name == "CLIPTextModel" || class_name == "CLIPTextModelWithProjection") {
    return ClipConfigOf(shapes, class_name, pipeline, component);
  }
  if (class_name == "T5EncoderModel") return T5ConfigOf(shapes);
  if (class_name == "Qwen3ForCausalLM" || class_name == "Qwen3Model") return Qwen3ConfigOf(shapes);
  if (class_name == "Qwen2_5_VLForConditionalGeneration") return Qwen25VlConfigOf(shapes);
  return class_name == "Mistral3ForConditionalGeneration" ? MistralConfigOf(shapes) : "";
}

// Adds the shapes that a tensor of a file gives its parameters. Parts of a fused tensor have its shape divided evenly,
// which is right for queries, keys and values; of no other fused tensor is a size read.
void AddShapes(const MappedKey& key, const std::vector<int64_t>& shape, TensorShapes& to) {
  std::vector<int64_t> mapped = shape;
  if (key.operation == KeyOperation::kConcat && !mapped.empty()) {
    mapped[0] /= static_cast<int64_t>(key.parameters.size());
  } else if (key.operation == KeyOperation::kConv && mapped.size() == 4) {
    mapped.resize(2);
  } else if (key.operation == KeyOperation::kPart && !mapped.empty()) {
    mapped[0] *= key.parts;
  } else if (key.operation == KeyOperation::kFrame && mapped.size() == 4) {
    mapped.insert(mapped.begin() + 2, key.parts);
  }
  for (const std::string& parameter : key.parameters) to.emplace(parameter, mapped);
}

}  // namespace

int64_t ConfigInt(const base::Json& config, std::string_view key) {
  const base::Json* value = config.Find(key);
  return value == nullptr ? 0 : value->AsInt().value_or(0);
}

bool ConfigBool(const base::Json& config, std::string_view key) {
  const base::Json* value = config.Find(key);
  return value != nullptr && value->AsBool().value_or(false);
}

base::Json NamingConfig(std::string_view class_name, const TensorShapes& file) {
  const Shapes shapes(file);
  ConfigWriter config("");
  if (class_name == "SD3Transformer2DModel") {
    config.Int("num_layers", std::max<int64_t>(1, shapes.Blocks("joint_blocks.")));
  } else if (class_name == "AutoencoderKL" || class_name == "AutoencoderKLFlux2") {
    const auto levels = static_cast<size_t>(std::max<int64_t>(1, shapes.Blocks("decoder.up.")));
    config.Ints("block_out_channels", std::vector<int64_t>(levels, 1));
  } else if (class_name == "AutoencoderKLQwenImage") {
    // The decoder's first upsampler follows the residual blocks of its first level.
    const int64_t layers = shapes.Blocks("decoder.upsamples.");
    std::vector<int64_t> upsamplers;
    for (int64_t layer = 0; layer < layers; ++layer) {
      if (shapes.AnyBegins(absl::StrCat("decoder.upsamples.", layer, ".resample."))) upsamplers.push_back(layer);
    }
    const int64_t residuals = upsamplers.empty() ? layers : upsamplers.front();
    config.Ints("dim_mult", std::vector<int64_t>(upsamplers.size() + 1, 1))
        .Int("num_res_blocks", std::clamp<int64_t>(residuals - 1, 1, 32));
  } else if (class_name == "Mistral3ForConditionalGeneration") {
    const auto heads = [&](const char* name) {
      const auto found = file.find(name);
      return found == file.end() || found->second.empty() ? 1 : std::max<int64_t>(1, found->second[0] / 128);
    };
    config.Int("num_attention_heads", heads("blk.0.attn_q.weight"))
        .Int("num_key_value_heads", heads("blk.0.attn_k.weight"));
  }
  return ParsedConfig(config.Finish());
}

absl::StatusOr<std::string> DeriveConfig(const std::string& class_name, const TensorShapes& file, NameForm form,
                                         std::string_view pipeline, std::string_view component) {
  ASSIGN_OR_RETURN(const std::optional<KeyMap> map, KeyMapOf(class_name, NamingConfig(class_name, file), form));
  if (!map) return absl::InvalidArgumentError(absl::StrCat("the names of ", class_name, " are not known"));
  TensorShapes mapped;
  for (const auto& [name, shape] : file) {
    if (const std::optional<MappedKey> key = map->Map(name)) AddShapes(*key, shape, mapped);
    if (name == kZeroConditionMark) mapped.emplace(name, shape);
  }
  Shapes shapes(mapped);
  std::string text = ConfigTextOf(class_name, shapes, pipeline, component);
  if (text.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("the configuration of ", class_name, " cannot be derived"));
  }
  if (!shapes.missing().empty()) {
    const std::optional<std::string> name = map->NameOf(shapes.missing());
    return absl::InvalidArgumentError(
        absl::StrCat("the file has no tensor ", base::Quote(name.value_or(shapes.missing()))));
  }
  return text;
}

}  // namespace tessera::models
