// Writes model folders of Z-Image, FLUX.2 and Qwen-Image for the fake CUDA, as full_size_models.h does for older
// families.
#pragma once

#include <string>

#include "absl/strings/str_cat.h"
#include "tests/cuda/full_size_models.h"
#include "tests/support/sparse_flux_folder.h"
#include "tests/support/test_folder.h"

namespace tessera {

// Output widths of the golden pipelines' text encoders; FLUX.2 reads three states side by side.
inline constexpr int64_t kGoldenQwen3 = 32, kGoldenKleinStates = 72, kGoldenDevStates = 72, kGoldenQwenVl = 32;

inline void AddZImageLayer(SparseWeights& weights, const std::string& layer, bool modulated) {
  constexpr int64_t kWidth = 3840, kHidden = 10240, kHeadDim = 128, kModulation = 256;
  for (const char* name : {"attention_norm1", "attention_norm2", "ffn_norm1", "ffn_norm2"}) {
    weights.Add(layer + name + ".weight", {kWidth});
  }
  for (const char* name : {"to_q", "to_k", "to_v", "to_out.0"}) {
    weights.Add(layer + "attention." + name + ".weight", {kWidth, kWidth});
  }
  for (const char* name : {"norm_q", "norm_k"}) weights.Add(layer + "attention." + name + ".weight", {kHeadDim});
  for (const char* name : {"w1", "w3"}) weights.Add(layer + "feed_forward." + name + ".weight", {kHidden, kWidth});
  weights.Add(layer + "feed_forward.w2.weight", {kWidth, kHidden});
  if (modulated) weights.AddLinear(layer + "adaLN_modulation.0", 4 * kWidth, kModulation);
}

// `text` is the width of its text encoder.
inline SparseWeights ZImageTransformer(int64_t text) {
  constexpr int64_t kWidth = 3840, kModulation = 256, kPatch = 64;
  SparseWeights weights;
  weights.AddLinear("all_x_embedder.2-1", kWidth, kPatch);
  weights.Add("x_pad_token", {1, kWidth});
  weights.Add("cap_pad_token", {1, kWidth});
  weights.Add("cap_embedder.0.weight", {text});
  weights.AddLinear("cap_embedder.1", kWidth, text);
  weights.AddLinear("t_embedder.mlp.0", 1024, 256);
  weights.AddLinear("t_embedder.mlp.2", kModulation, 1024);
  weights.AddLinear("all_final_layer.2-1.adaLN_modulation.1", kWidth, kModulation);
  weights.AddLinear("all_final_layer.2-1.linear", kPatch, kWidth);
  for (int i = 0; i < 2; ++i) {
    AddZImageLayer(weights, absl::StrCat("context_refiner.", i, "."), /*modulated=*/false);
    AddZImageLayer(weights, absl::StrCat("noise_refiner.", i, "."), /*modulated=*/true);
  }
  for (int i = 0; i < 30; ++i) AddZImageLayer(weights, absl::StrCat("layers.", i, "."), /*modulated=*/true);
  return weights;
}

// FLUX.2 has 128 channels per head and no biases.
inline SparseWeights Flux2Transformer(int64_t heads, int64_t double_blocks, int64_t single_blocks, int64_t text,
                                      bool guidance) {
  constexpr int64_t kHeadDim = 128, kChannels = 128;
  const int64_t width = heads * kHeadDim, mlp = 3 * width;
  SparseWeights weights;
  const auto add = [&weights](const std::string& name, int64_t out, int64_t in) {
    weights.Add(name + ".weight", {out, in});
  };
  add("x_embedder", width, kChannels);
  add("context_embedder", width, text);
  for (const char* name : {"timestep", "guidance"}) {
    if (!guidance && std::string(name) == "guidance") continue;
    add(absl::StrCat("time_guidance_embed.", name, "_embedder.linear_1"), width, 256);
    add(absl::StrCat("time_guidance_embed.", name, "_embedder.linear_2"), width, width);
  }
  add("double_stream_modulation_img.linear", 6 * width, width);
  add("double_stream_modulation_txt.linear", 6 * width, width);
  add("single_stream_modulation.linear", 3 * width, width);
  for (int64_t i = 0; i < double_blocks; ++i) {
    const std::string block = absl::StrCat("transformer_blocks.", i, ".");
    for (const char* name :
         {"to_q", "to_k", "to_v", "add_q_proj", "add_k_proj", "add_v_proj", "to_out.0", "to_add_out"}) {
      add(block + "attn." + name, width, width);
    }
    for (const char* name : {"norm_q", "norm_k", "norm_added_q", "norm_added_k"}) {
      weights.Add(block + "attn." + name + ".weight", {kHeadDim});
    }
    for (const char* name : {"ff", "ff_context"}) {
      add(block + name + ".linear_in", 2 * mlp, width);
      add(block + name + ".linear_out", width, mlp);
    }
  }
  for (int64_t i = 0; i < single_blocks; ++i) {
    const std::string block = absl::StrCat("single_transformer_blocks.", i, ".attn.");
    add(block + "to_qkv_mlp_proj", 3 * width + 2 * mlp, width);
    add(block + "to_out", width, width + mlp);
    for (const char* name : {"norm_q", "norm_k"}) weights.Add(block + name + ".weight", {kHeadDim});
  }
  add("norm_out.linear", 2 * width, width);
  add("proj_out", kChannels, width);
  return weights;
}

// The text encoder of Z-Image and of FLUX.2 klein 4B (layers 36, width 2560, hidden 9728) or 9B (36, 4096, 12288).
inline SparseWeights Qwen3(int64_t layers, int64_t width, int64_t hidden) {
  constexpr int64_t kHeadDim = 128, kHeads = 32, kKeys = 8, kVocabulary = 151936;
  SparseWeights weights;
  weights.Add("model.embed_tokens.weight", {kVocabulary, width});
  for (int64_t i = 0; i < layers; ++i) {
    const std::string layer = absl::StrCat("model.layers.", i, ".");
    weights.Add(layer + "self_attn.q_proj.weight", {kHeads * kHeadDim, width});
    for (const char* name : {"k_proj", "v_proj"}) {
      weights.Add(layer + "self_attn." + name + ".weight", {kKeys * kHeadDim, width});
    }
    weights.Add(layer + "self_attn.o_proj.weight", {width, kHeads * kHeadDim});
    for (const char* name : {"q_norm", "k_norm"}) weights.Add(layer + "self_attn." + name + ".weight", {kHeadDim});
    for (const char* name : {"gate_proj", "up_proj"}) weights.Add(layer + "mlp." + name + ".weight", {hidden, width});
    weights.Add(layer + "mlp.down_proj.weight", {width, hidden});
    for (const char* name : {"input_layernorm", "post_attention_layernorm"}) {
      weights.Add(layer + name + ".weight", {width});
    }
  }
  weights.Add("model.norm.weight", {width});
  return weights;
}

inline void ReplaceByQwen3(const TestFolder& folder, const std::string& component, int64_t layers, int64_t width,
                           int64_t hidden) {
  ReplaceComponent(folder, component, Qwen3(layers, width, hidden), "model",
                   {{"hidden_size", width},
                    {"intermediate_size", hidden},
                    {"num_attention_heads", 32},
                    {"num_key_value_heads", 8},
                    {"head_dim", 128},
                    {"num_hidden_layers", layers},
                    {"vocab_size", 151936}});
}

// The language model of Qwen2.5-VL-7B, which is Qwen-Image's text encoder.
inline SparseWeights Qwen25() {
  constexpr int64_t kWidth = 3584, kHidden = 18944, kKeys = 4 * 128, kVocabulary = 152064;
  SparseWeights weights;
  weights.Add("model.embed_tokens.weight", {kVocabulary, kWidth});
  for (int i = 0; i < 28; ++i) {
    const std::string layer = absl::StrCat("model.layers.", i, ".");
    weights.AddLinear(layer + "self_attn.q_proj", kWidth, kWidth);
    for (const char* name : {"k_proj", "v_proj"}) weights.AddLinear(layer + "self_attn." + name, kKeys, kWidth);
    weights.Add(layer + "self_attn.o_proj.weight", {kWidth, kWidth});
    for (const char* name : {"gate_proj", "up_proj"}) weights.Add(layer + "mlp." + name + ".weight", {kHidden, kWidth});
    weights.Add(layer + "mlp.down_proj.weight", {kWidth, kHidden});
    for (const char* name : {"input_layernorm", "post_attention_layernorm"}) {
      weights.Add(layer + name + ".weight", {kWidth});
    }
  }
  weights.Add("model.norm.weight", {kWidth});
  return weights;
}

// `text` is the width of its text encoder.
inline SparseWeights QwenImageTransformer(int64_t text) {
  constexpr int64_t kWidth = 3072, kHeadDim = 128, kPatch = 64;
  SparseWeights weights;
  weights.AddLinear("img_in", kWidth, kPatch);
  weights.AddLinear("txt_in", kWidth, text);
  weights.Add("txt_norm.weight", {text});
  weights.AddLinear("time_text_embed.timestep_embedder.linear_1", kWidth, 256);
  weights.AddLinear("time_text_embed.timestep_embedder.linear_2", kWidth, kWidth);
  for (int i = 0; i < 60; ++i) {
    const std::string block = absl::StrCat("transformer_blocks.", i, ".");
    for (const char* name :
         {"to_q", "to_k", "to_v", "add_q_proj", "add_k_proj", "add_v_proj", "to_out.0", "to_add_out"}) {
      weights.AddLinear(block + "attn." + name, kWidth, kWidth);
    }
    for (const char* name : {"norm_q", "norm_k", "norm_added_q", "norm_added_k"}) {
      weights.Add(block + "attn." + name + ".weight", {kHeadDim});
    }
    for (const char* stream : {"img", "txt"}) {
      weights.AddLinear(block + stream + "_mod.1", 6 * kWidth, kWidth);
      weights.AddLinear(block + stream + "_mlp.net.0.proj", 4 * kWidth, kWidth);
      weights.AddLinear(block + stream + "_mlp.net.2", kWidth, 4 * kWidth);
    }
  }
  weights.AddLinear("norm_out.linear", 2 * kWidth, kWidth);
  weights.AddLinear("proj_out", kPatch, kWidth);
  return weights;
}

inline void WriteZImage(const TestFolder& folder, int64_t text) {
  WriteFullSize(folder, "z_image_turbo", "z_image_turbo", ZImageTransformer(text),
                {{"dim", 3840},
                 {"n_heads", 30},
                 {"n_kv_heads", 30},
                 {"n_layers", 30},
                 {"n_refiner_layers", 2},
                 {"cap_feat_dim", text},
                 {"axes_dims", {32, 48, 48}},
                 {"axes_lens", {1536, 512, 512}}},
                "golden-newer");
}

inline void WriteFullSizeZImage(const TestFolder& folder) { WriteZImage(folder, kGoldenQwen3); }

// With its text encoder, Qwen3-4B.
inline void WriteWholeZImage(const TestFolder& folder) {
  WriteZImage(folder, 2560);
  ReplaceByQwen3(folder, "z_image_turbo/text_encoder", 36, 2560, 9728);
}

// `text` is the width of three states of the text encoder.
inline void WriteFullSizeKlein(const TestFolder& folder, int64_t text = kGoldenKleinStates) {
  WriteFullSize(folder, "flux2_klein", "flux2_klein", Flux2Transformer(24, 5, 20, text, /*guidance=*/false),
                {{"attention_head_dim", 128},
                 {"num_attention_heads", 24},
                 {"num_layers", 5},
                 {"num_single_layers", 20},
                 {"joint_attention_dim", text},
                 {"axes_dims_rope", {32, 32, 32, 32}}},
                "golden-newer");
}

// With its text encoder, Qwen3-4B.
inline void WriteWholeKlein(const TestFolder& folder) {
  WriteFullSizeKlein(folder, 3 * 2560);
  ReplaceByQwen3(folder, "flux2_klein/text_encoder", 36, 2560, 9728);
}

// The base of FLUX.2 klein 9B with its text encoder, Qwen3-8B.
inline void WriteWholeKlein9B(const TestFolder& folder) {
  WriteFullSize(folder, "flux2_klein_9b", "flux2_klein_base", Flux2Transformer(32, 8, 24, 3 * 4096, /*guidance=*/false),
                {{"attention_head_dim", 128},
                 {"num_attention_heads", 32},
                 {"num_layers", 8},
                 {"num_single_layers", 24},
                 {"mlp_ratio", 3.0},
                 {"joint_attention_dim", 3 * 4096},
                 {"axes_dims_rope", {32, 32, 32, 32}}},
                "golden-newer");
  ReplaceByQwen3(folder, "flux2_klein_9b/text_encoder", 36, 4096, 12288);
}

inline void WriteFullSizeDev(const TestFolder& folder) {
  WriteFullSize(folder, "flux2_dev", "flux2_dev", Flux2Transformer(48, 8, 48, kGoldenDevStates, /*guidance=*/true),
                {{"attention_head_dim", 128},
                 {"num_attention_heads", 48},
                 {"num_layers", 8},
                 {"num_single_layers", 48},
                 {"axes_dims_rope", {32, 32, 32, 32}}},
                "golden-edit");
}

inline void WriteQwenImage(const TestFolder& folder, int64_t text) {
  WriteFullSize(folder, "qwen_image", "qwen_image", QwenImageTransformer(text),
                {{"attention_head_dim", 128},
                 {"num_attention_heads", 24},
                 {"num_layers", 60},
                 {"joint_attention_dim", text},
                 {"axes_dims_rope", {16, 56, 56}}},
                "golden-newer");
}

inline void WriteFullSizeQwenImage(const TestFolder& folder) { WriteQwenImage(folder, kGoldenQwenVl); }

// With its text encoder, without the part that reads pictures.
inline void WriteWholeQwenImage(const TestFolder& folder) {
  WriteQwenImage(folder, 3584);
  const boost::json::object rope = {
      {"mrope_section", {16, 24, 24}}, {"rope_theta", 1000000.0}, {"rope_type", "default"}};
  const boost::json::object text = {{"hidden_act", "silu"},
                                    {"hidden_size", 3584},
                                    {"intermediate_size", 18944},
                                    {"max_position_embeddings", 128000},
                                    {"model_type", "qwen2_5_vl_text"},
                                    {"num_attention_heads", 28},
                                    {"num_hidden_layers", 28},
                                    {"num_key_value_heads", 4},
                                    {"rms_norm_eps", 1e-06},
                                    {"rope_parameters", rope},
                                    {"use_sliding_window", false},
                                    {"vocab_size", 152064}};
  ReplaceComponent(folder, "qwen_image/text_encoder", Qwen25(), "model", {{"text_config", text}});
}

}  // namespace tessera
