#include "models/weights/known_parts.h"

#include <algorithm>

namespace tessera::models {
namespace {

using enum PartRole;
using enum NameForm;

// Families that are not run come before those whose names they contain.
constexpr KnownPart kParts[] = {
    {kTransformer, "", "Chroma", kOriginal, {"distilled_guidance_layer."}},
    {kTransformer, "", "HunyuanVideo", kOriginal, {"double_blocks.", "txt_in.individual_token_refiner."}},
    {kTransformer, "", "HiDream", kOriginal, {"double_stream_blocks."}},
    {kTransformer,
     "Flux2Transformer2DModel",
     "FLUX.2",
     kOriginal,
     {"double_blocks.", "single_stream_modulation."},
     "transformer_blocks."},
    {kTransformer, "FluxTransformer2DModel", "FLUX.1", kOriginal, {"double_blocks."}, "transformer_blocks."},
    {kTransformer, "FluxTransformer2DModel", "FLUX.1", kOriginal, {"single_blocks."}, "transformer_blocks."},
    {kTransformer, "SD3Transformer2DModel", "Stable Diffusion 3", kOriginal, {"joint_blocks."}, "transformer_blocks."},
    {kTransformer, "ZImageTransformer2DModel", "Z-Image", kDiffusers, {"noise_refiner.", "all_x_embedder."}},
    {kTransformer,
     "ZImageTransformer2DModel",
     "Z-Image",
     kOriginal,
     {"noise_refiner.", "cap_pad_token"},
     "all_x_embedder."},
    {kTransformer, "", "Lumina 2", kOriginal, {"noise_refiner.", "cap_embedder."}},
    {kTransformer, "QwenImageTransformer2DModel", "Qwen-Image", kOriginal, {"transformer_blocks.0.img_mod."}},
    {kTransformer,
     "Flux2Transformer2DModel",
     "FLUX.2",
     kDiffusers,
     {"single_transformer_blocks.", "single_stream_modulation."}},
    {kTransformer, "FluxTransformer2DModel", "FLUX.1", kDiffusers, {"single_transformer_blocks.", "x_embedder."}},
    {kTransformer,
     "SD3Transformer2DModel",
     "Stable Diffusion 3",
     kDiffusers,
     {"transformer_blocks.0.attn.add_", "pos_embed.proj."}},
    {kTransformer, "", "Stable Diffusion XL (SDXL)", kOriginal, {"input_blocks.", "label_emb."}},
    {kTransformer, "", "Stable Diffusion 1 and 2", kOriginal, {"input_blocks."}},
    {kTransformer, "", "Stable Diffusion XL (SDXL)", kDiffusers, {"down_blocks.", "add_embedding."}},
    {kTransformer, "", "Stable Diffusion 1 and 2", kDiffusers, {"down_blocks.", "time_embedding."}},
    {kTransformer, "", "Wan", kOriginal, {"patch_embedding.", "blocks.0.self_attn."}},
    {kTransformer, "", "LTX-Video", kOriginal, {"patchify_proj."}},
    {kTransformer, "", "AuraFlow", kOriginal, {"double_layers."}},
    {kAutoencoder, "AutoencoderKLFlux2", "FLUX.2", kOriginal, {"decoder.mid.", "bn."}, "decoder.up_blocks."},
    {kAutoencoder,
     "AutoencoderKL",
     "Stable Diffusion 3, FLUX.1 and Z-Image",
     kOriginal,
     {"decoder.mid."},
     "decoder.up_blocks."},
    {kAutoencoder, "AutoencoderKLQwenImage", "Qwen-Image", kOriginal, {"decoder.middle."}, "decoder.up_blocks."},
    {kAutoencoder, "AutoencoderKLFlux2", "FLUX.2", kDiffusers, {"decoder.up_blocks.", "bn."}},
    {kAutoencoder,
     "AutoencoderKLQwenImage",
     "Qwen-Image",
     kDiffusers,
     {"decoder.up_blocks.", "decoder.mid_block.attentions.0.to_qkv."}},
    {kAutoencoder, "AutoencoderKL", "Stable Diffusion 3, FLUX.1 and Z-Image", kDiffusers, {"decoder.up_blocks."}},
    {kTextEncoder, "CLIPTextModel", "CLIP", kOriginal, {"text_model.encoder.layers.0."}},
    {kTextEncoder, "T5EncoderModel", "T5", kOriginal, {"encoder.block.0."}},
    {kTextEncoder, "T5EncoderModel", "T5", kLlamaCpp, {"enc.blk.0."}},
    {kTextEncoder,
     "Qwen2_5_VLForConditionalGeneration",
     "Qwen2.5-VL",
     kOriginal,
     {"model.layers.0.self_attn.q_proj.bias"}},
    {kTextEncoder,
     "Qwen2_5_VLForConditionalGeneration",
     "Qwen2.5-VL",
     kOriginal,
     {"model.language_model.layers.0.self_attn.q_proj.bias"}},
    {kTextEncoder, "Qwen3ForCausalLM", "Qwen3", kOriginal, {"model.layers.0.self_attn.q_norm."}},
    {kTextEncoder, "Mistral3ForConditionalGeneration", "Mistral", kOriginal, {"model.layers.0.self_attn."}},
    {kTextEncoder, "Mistral3ForConditionalGeneration", "Mistral", kOriginal, {"language_model.model.layers.0."}},
    {kTextEncoder, "Qwen2_5_VLForConditionalGeneration", "Qwen2.5-VL", kLlamaCpp, {"blk.0.attn_q.bias"}},
    {kTextEncoder, "Qwen3ForCausalLM", "Qwen3", kLlamaCpp, {"blk.0.attn_q_norm."}},
    {kTextEncoder, "Mistral3ForConditionalGeneration", "Mistral", kLlamaCpp, {"blk.0.attn_q."}},
    {kTextEncoder, kLlamaCppClipClass, "CLIP", kLlamaCpp, {"t.blk.0."}},
    {kTextEncoder, kVisionTowerClass, "the vision tower of Qwen2.5-VL", kLlamaCpp, {"v.blk.0."}},
};

constexpr std::string_view kPrefixes[] = {"model.diffusion_model.", "diffusion_model.", "first_stage_model.", "vae."};
constexpr std::string_view kTextEncoders = "text_encoders.", kTransformerOf = "transformer.";

// Source: the architectures that ComfyUI's and stable-diffusion.cpp's converters, and llama.cpp, write.
constexpr std::string_view kArchitectures[] = {"flux",      "sd3",      "qwen_image", "lumina2", "z_image",
                                               "t5encoder", "t5",       "qwen3",      "qwen2vl", "qwen25vl",
                                               "llama",     "mistral3", "clip",       "pig",     "cow"};

constexpr Fp8File kFp8Files[] = {
    {"FLUX.1", "Comfy-Org/flux1-dev", "flux1-dev-fp8.safetensors"},
    {"FLUX.2", "Comfy-Org/flux2-dev", "split_files/diffusion_models/flux2_dev_fp8mixed.safetensors"},
    {"Stable Diffusion 3", "Comfy-Org/stable-diffusion-3.5-fp8", "sd3.5_large_fp8_scaled.safetensors"},
    {"Qwen-Image", "Comfy-Org/Qwen-Image_ComfyUI", "split_files/diffusion_models/qwen_image_fp8_e4m3fn.safetensors"},
    {"T5", "comfyanonymous/flux_text_encoders", "t5xxl_fp8_e4m3fn_scaled.safetensors"},
};

}  // namespace

constexpr std::span<const KnownPart> kKnownParts{kParts};

std::string_view ComponentPrefix(std::string_view name) {
  for (const std::string_view prefix : kPrefixes) {
    if (name.starts_with(prefix)) return prefix;
  }
  if (!name.starts_with(kTextEncoders)) return {};
  const size_t dot = name.find('.', kTextEncoders.size());
  if (dot == std::string_view::npos) return {};
  const bool within = name.substr(dot + 1).starts_with(kTransformerOf);
  return name.substr(0, dot + 1 + (within ? kTransformerOf.size() : 0));
}

bool IsWithoutEffect(std::string_view prefix, std::string_view name) {
  if (prefix.starts_with(kTextEncoders)) return name == "logit_scale" || name == "scaled_fp8";
  return name.starts_with("model_ema.");
}

bool IsReadArchitecture(std::string_view architecture) {
  return std::ranges::find(kArchitectures, architecture) != std::end(kArchitectures);
}

const Fp8File* Fp8FileOf(std::string_view family) {
  const auto* found = std::ranges::find(kFp8Files, family, &Fp8File::family);
  return found == std::end(kFp8Files) ? nullptr : found;
}

}  // namespace tessera::models
