#include "models/keymaps/key_tables.h"

#include <algorithm>
#include <array>
#include <cstddef>

namespace tessera::models {
namespace {

using enum KeyOperation;
using enum KeyUnit;

template <size_t kSome, size_t kOthers>
constexpr std::array<KeyRow, kSome + kOthers> Joined(const std::array<KeyRow, kSome>& some,
                                                     const std::array<KeyRow, kOthers>& others) {
  std::array<KeyRow, kSome + kOthers> all{};
  std::copy(some.begin(), some.end(), all.begin());
  std::copy(others.begin(), others.end(), all.begin() + kSome);
  return all;
}

// What both families of Black Forest Labs have. The file's last modulation is (shift, scale), diffusers' (scale,
// shift).
constexpr std::array kBlackForestRows{
    KeyRow{"img_in", "x_embedder"},
    KeyRow{"txt_in", "context_embedder"},
    KeyRow{"double_blocks.{}.img_attn.qkv",
           "transformer_blocks.{}.attn.to_q transformer_blocks.{}.attn.to_k transformer_blocks.{}.attn.to_v"},
    KeyRow{"double_blocks.{}.txt_attn.qkv",
           "transformer_blocks.{}.attn.add_q_proj transformer_blocks.{}.attn.add_k_proj "
           "transformer_blocks.{}.attn.add_v_proj"},
    KeyRow{"double_blocks.{}.img_attn.proj", "transformer_blocks.{}.attn.to_out.0"},
    KeyRow{"double_blocks.{}.txt_attn.proj", "transformer_blocks.{}.attn.to_add_out"},
    KeyRow{"double_blocks.{}.img_attn.norm.query_norm.scale", "transformer_blocks.{}.attn.norm_q.weight", kSame,
           kTensor},
    KeyRow{"double_blocks.{}.img_attn.norm.key_norm.scale", "transformer_blocks.{}.attn.norm_k.weight", kSame, kTensor},
    KeyRow{"double_blocks.{}.txt_attn.norm.query_norm.scale", "transformer_blocks.{}.attn.norm_added_q.weight", kSame,
           kTensor},
    KeyRow{"double_blocks.{}.txt_attn.norm.key_norm.scale", "transformer_blocks.{}.attn.norm_added_k.weight", kSame,
           kTensor},
    KeyRow{"single_blocks.{}.norm.query_norm.scale", "single_transformer_blocks.{}.attn.norm_q.weight", kSame, kTensor},
    KeyRow{"single_blocks.{}.norm.key_norm.scale", "single_transformer_blocks.{}.attn.norm_k.weight", kSame, kTensor},
    KeyRow{"final_layer.linear", "proj_out"},
    KeyRow{"final_layer.adaLN_modulation.1", "norm_out.linear", kSwap},
};

// Source: the modules of Black Forest Labs' flux (model.py), matched to diffusers' FluxTransformer2DModel.
constexpr std::array kFluxRows =
    Joined(kBlackForestRows, std::array{
                                 KeyRow{"time_in.in_layer", "time_text_embed.timestep_embedder.linear_1"},
                                 KeyRow{"time_in.out_layer", "time_text_embed.timestep_embedder.linear_2"},
                                 KeyRow{"vector_in.in_layer", "time_text_embed.text_embedder.linear_1"},
                                 KeyRow{"vector_in.out_layer", "time_text_embed.text_embedder.linear_2"},
                                 KeyRow{"guidance_in.in_layer", "time_text_embed.guidance_embedder.linear_1"},
                                 KeyRow{"guidance_in.out_layer", "time_text_embed.guidance_embedder.linear_2"},
                                 KeyRow{"double_blocks.{}.img_mlp.0", "transformer_blocks.{}.ff.net.0.proj"},
                                 KeyRow{"double_blocks.{}.img_mlp.2", "transformer_blocks.{}.ff.net.2"},
                                 KeyRow{"double_blocks.{}.txt_mlp.0", "transformer_blocks.{}.ff_context.net.0.proj"},
                                 KeyRow{"double_blocks.{}.txt_mlp.2", "transformer_blocks.{}.ff_context.net.2"},
                                 KeyRow{"double_blocks.{}.img_mod.lin", "transformer_blocks.{}.norm1.linear"},
                                 KeyRow{"double_blocks.{}.txt_mod.lin", "transformer_blocks.{}.norm1_context.linear"},
                                 KeyRow{"single_blocks.{}.linear1",
                                        "single_transformer_blocks.{}.attn.to_q single_transformer_blocks.{}.attn.to_k "
                                        "single_transformer_blocks.{}.attn.to_v single_transformer_blocks.{}.proj_mlp"},
                                 KeyRow{"single_blocks.{}.linear2", "single_transformer_blocks.{}.proj_out"},
                                 KeyRow{"single_blocks.{}.modulation.lin", "single_transformer_blocks.{}.norm.linear"},
                             });

// Source: the modules of Black Forest Labs' flux2 (model.py), matched to diffusers' Flux2Transformer2DModel. The
// modulations are of all blocks, and the first product of a single block is one module in both.
constexpr std::array kFlux2Rows = Joined(
    kBlackForestRows, std::array{
                          KeyRow{"time_in.in_layer", "time_guidance_embed.timestep_embedder.linear_1"},
                          KeyRow{"time_in.out_layer", "time_guidance_embed.timestep_embedder.linear_2"},
                          KeyRow{"guidance_in.in_layer", "time_guidance_embed.guidance_embedder.linear_1"},
                          KeyRow{"guidance_in.out_layer", "time_guidance_embed.guidance_embedder.linear_2"},
                          KeyRow{"double_stream_modulation_img.lin", "double_stream_modulation_img.linear"},
                          KeyRow{"double_stream_modulation_txt.lin", "double_stream_modulation_txt.linear"},
                          KeyRow{"single_stream_modulation.lin", "single_stream_modulation.linear"},
                          KeyRow{"double_blocks.{}.img_mlp.0", "transformer_blocks.{}.ff.linear_in"},
                          KeyRow{"double_blocks.{}.img_mlp.2", "transformer_blocks.{}.ff.linear_out"},
                          KeyRow{"double_blocks.{}.txt_mlp.0", "transformer_blocks.{}.ff_context.linear_in"},
                          KeyRow{"double_blocks.{}.txt_mlp.2", "transformer_blocks.{}.ff_context.linear_out"},
                          KeyRow{"single_blocks.{}.linear1", "single_transformer_blocks.{}.attn.to_qkv_mlp_proj"},
                          KeyRow{"single_blocks.{}.linear2", "single_transformer_blocks.{}.attn.to_out"},
                      });

// Source: the modules of Stability's sd3.5 (mmditx.py), matched to diffusers' SD3Transformer2DModel. The context's last
// modulation has two parts, of which diffusers' continuous norm reads the scale first.
constexpr std::array kSd3Rows{
    KeyRow{"joint_blocks.{last}.context_block.adaLN_modulation.1", "transformer_blocks.{last}.norm1_context.linear",
           kSwap},
    KeyRow{"pos_embed", "pos_embed.pos_embed", kSame, kTensor},
    KeyRow{"x_embedder.proj", "pos_embed.proj"},
    KeyRow{"context_embedder", "context_embedder"},
    KeyRow{"t_embedder.mlp.0", "time_text_embed.timestep_embedder.linear_1"},
    KeyRow{"t_embedder.mlp.2", "time_text_embed.timestep_embedder.linear_2"},
    KeyRow{"y_embedder.mlp.0", "time_text_embed.text_embedder.linear_1"},
    KeyRow{"y_embedder.mlp.2", "time_text_embed.text_embedder.linear_2"},
    KeyRow{"joint_blocks.{}.x_block.attn.qkv",
           "transformer_blocks.{}.attn.to_q transformer_blocks.{}.attn.to_k transformer_blocks.{}.attn.to_v"},
    KeyRow{"joint_blocks.{}.x_block.attn2.qkv",
           "transformer_blocks.{}.attn2.to_q transformer_blocks.{}.attn2.to_k transformer_blocks.{}.attn2.to_v"},
    KeyRow{"joint_blocks.{}.context_block.attn.qkv",
           "transformer_blocks.{}.attn.add_q_proj transformer_blocks.{}.attn.add_k_proj "
           "transformer_blocks.{}.attn.add_v_proj"},
    KeyRow{"joint_blocks.{}.x_block.attn.proj", "transformer_blocks.{}.attn.to_out.0"},
    KeyRow{"joint_blocks.{}.x_block.attn2.proj", "transformer_blocks.{}.attn2.to_out.0"},
    KeyRow{"joint_blocks.{}.context_block.attn.proj", "transformer_blocks.{}.attn.to_add_out"},
    KeyRow{"joint_blocks.{}.x_block.attn.ln_q", "transformer_blocks.{}.attn.norm_q"},
    KeyRow{"joint_blocks.{}.x_block.attn.ln_k", "transformer_blocks.{}.attn.norm_k"},
    KeyRow{"joint_blocks.{}.x_block.attn2.ln_q", "transformer_blocks.{}.attn2.norm_q"},
    KeyRow{"joint_blocks.{}.x_block.attn2.ln_k", "transformer_blocks.{}.attn2.norm_k"},
    KeyRow{"joint_blocks.{}.context_block.attn.ln_q", "transformer_blocks.{}.attn.norm_added_q"},
    KeyRow{"joint_blocks.{}.context_block.attn.ln_k", "transformer_blocks.{}.attn.norm_added_k"},
    KeyRow{"joint_blocks.{}.x_block.mlp.fc1", "transformer_blocks.{}.ff.net.0.proj"},
    KeyRow{"joint_blocks.{}.x_block.mlp.fc2", "transformer_blocks.{}.ff.net.2"},
    KeyRow{"joint_blocks.{}.context_block.mlp.fc1", "transformer_blocks.{}.ff_context.net.0.proj"},
    KeyRow{"joint_blocks.{}.context_block.mlp.fc2", "transformer_blocks.{}.ff_context.net.2"},
    KeyRow{"joint_blocks.{}.x_block.adaLN_modulation.1", "transformer_blocks.{}.norm1.linear"},
    KeyRow{"joint_blocks.{}.context_block.adaLN_modulation.1", "transformer_blocks.{}.norm1_context.linear"},
    KeyRow{"final_layer.linear", "proj_out"},
    KeyRow{"final_layer.adaLN_modulation.1", "norm_out.linear", kSwap},
};

// Source: the modules of Tongyi-MAI's Z-Image as in its single files, matched to diffusers' ZImageTransformer2DModel,
// which names the embedder and the head of each patch size (2 x 2, one frame).
constexpr std::array kZImageRows{
    KeyRow{"{stack}.{}.attention.qkv", "{stack}.{}.attention.to_q {stack}.{}.attention.to_k {stack}.{}.attention.to_v"},
    KeyRow{"{stack}.{}.attention.out", "{stack}.{}.attention.to_out.0"},
    KeyRow{"{stack}.{}.attention.q_norm", "{stack}.{}.attention.norm_q"},
    KeyRow{"{stack}.{}.attention.k_norm", "{stack}.{}.attention.norm_k"},
    KeyRow{"{stack}.{}.feed_forward.w1", "{stack}.{}.feed_forward.w1"},
    KeyRow{"{stack}.{}.feed_forward.w2", "{stack}.{}.feed_forward.w2"},
    KeyRow{"{stack}.{}.feed_forward.w3", "{stack}.{}.feed_forward.w3"},
    KeyRow{"{stack}.{}.attention_norm1", "{stack}.{}.attention_norm1"},
    KeyRow{"{stack}.{}.attention_norm2", "{stack}.{}.attention_norm2"},
    KeyRow{"{stack}.{}.ffn_norm1", "{stack}.{}.ffn_norm1"},
    KeyRow{"{stack}.{}.ffn_norm2", "{stack}.{}.ffn_norm2"},
    KeyRow{"{stack}.{}.adaLN_modulation.0", "{stack}.{}.adaLN_modulation.0"},
    KeyRow{"x_embedder", "all_x_embedder.2-1"},
    KeyRow{"cap_embedder.0", "cap_embedder.0"},
    KeyRow{"cap_embedder.1", "cap_embedder.1"},
    KeyRow{"t_embedder.mlp.0", "t_embedder.mlp.0"},
    KeyRow{"t_embedder.mlp.2", "t_embedder.mlp.2"},
    KeyRow{"x_pad_token", "x_pad_token", kSame, kTensor},
    KeyRow{"cap_pad_token", "cap_pad_token", kSame, kTensor},
    KeyRow{"final_layer.linear", "all_final_layer.2-1.linear"},
    KeyRow{"final_layer.adaLN_modulation.1", "all_final_layer.2-1.adaLN_modulation.1"},
};
constexpr std::array<std::string_view, 1> kZImageIgnored{"norm_final.weight"};

// Source: the modules of latent-diffusion (autoencoder.py), matched to diffusers' AutoencoderKL. {side} is the
// encoder and the decoder, {layer} each layer of a residual block. FLUX.2 has the two products of the latents within
// {in_encoder} and {in_decoder}, which are empty elsewhere, and normalises patches of latents by `bn`.
constexpr std::array kLatentDiffusionRows{
    KeyRow{"{in_encoder}quant_conv", "{in_encoder}quant_conv"},
    KeyRow{"{in_decoder}post_quant_conv", "{in_decoder}post_quant_conv"},
    KeyRow{"bn.running_mean", "bn.running_mean", kSame, kTensor},
    KeyRow{"bn.running_var", "bn.running_var", kSame, kTensor},
    KeyRow{"bn.num_batches_tracked", "bn.num_batches_tracked", kSame, kTensor},
    KeyRow{"{side}.conv_in", "{side}.conv_in"},
    KeyRow{"{side}.conv_out", "{side}.conv_out"},
    KeyRow{"{side}.norm_out", "{side}.conv_norm_out"},
    KeyRow{"{side}.mid.attn_1.norm", "{side}.mid_block.attentions.0.group_norm"},
    KeyRow{"{side}.mid.attn_1.q.weight", "{side}.mid_block.attentions.0.to_q.weight", kConv, kTensor},
    KeyRow{"{side}.mid.attn_1.k.weight", "{side}.mid_block.attentions.0.to_k.weight", kConv, kTensor},
    KeyRow{"{side}.mid.attn_1.v.weight", "{side}.mid_block.attentions.0.to_v.weight", kConv, kTensor},
    KeyRow{"{side}.mid.attn_1.proj_out.weight", "{side}.mid_block.attentions.0.to_out.0.weight", kConv, kTensor},
    KeyRow{"{side}.mid.attn_1.q.bias", "{side}.mid_block.attentions.0.to_q.bias", kSame, kTensor},
    KeyRow{"{side}.mid.attn_1.k.bias", "{side}.mid_block.attentions.0.to_k.bias", kSame, kTensor},
    KeyRow{"{side}.mid.attn_1.v.bias", "{side}.mid_block.attentions.0.to_v.bias", kSame, kTensor},
    KeyRow{"{side}.mid.attn_1.proj_out.bias", "{side}.mid_block.attentions.0.to_out.0.bias", kSame, kTensor},
    KeyRow{"{side}.mid.block_1.{layer}", "{side}.mid_block.resnets.0.{layer}"},
    KeyRow{"{side}.mid.block_2.{layer}", "{side}.mid_block.resnets.1.{layer}"},
    KeyRow{"encoder.down.{}.block.{}.{layer}", "encoder.down_blocks.{}.resnets.{}.{layer}"},
    KeyRow{"encoder.down.{}.downsample.conv", "encoder.down_blocks.{}.downsamplers.0.conv"},
    KeyRow{"decoder.up.{level}.block.{}.{layer}", "decoder.up_blocks.{level}.resnets.{}.{layer}"},
    KeyRow{"decoder.up.{level}.upsample.conv", "decoder.up_blocks.{level}.upsamplers.0.conv"},
};

// Source: the modules of Wan's autoencoder of videos (vae.py), matched to diffusers' AutoencoderKLQwenImage. The
// decoder's layers are numbered through all levels.
constexpr std::array kWanRows{
    KeyRow{"conv1", "quant_conv"},
    KeyRow{"conv2", "post_quant_conv"},
    KeyRow{"{side}.conv1", "{side}.conv_in"},
    KeyRow{"{side}.head.0", "{side}.norm_out"},
    KeyRow{"{side}.head.2", "{side}.conv_out"},
    KeyRow{"{side}.middle.0.{layer}", "{side}.mid_block.resnets.0.{layer}"},
    KeyRow{"{side}.middle.2.{layer}", "{side}.mid_block.resnets.1.{layer}"},
    KeyRow{"{side}.middle.1.norm", "{side}.mid_block.attentions.0.norm"},
    KeyRow{"{side}.middle.1.to_qkv", "{side}.mid_block.attentions.0.to_qkv"},
    KeyRow{"{side}.middle.1.proj", "{side}.mid_block.attentions.0.proj"},
    KeyRow{"encoder.downsamples.{}.{layer}", "encoder.down_blocks.{}.{layer}"},
    KeyRow{"encoder.downsamples.{}.resample.1", "encoder.down_blocks.{}.resample.1"},
    KeyRow{"encoder.downsamples.{}.time_conv", "encoder.down_blocks.{}.time_conv"},
    KeyRow{"decoder.upsamples.{residual}.{layer}", "decoder.up_blocks.{residual}.{layer}"},
    KeyRow{"decoder.upsamples.{upsampler}.resample.1", "decoder.up_blocks.{upsampler}.resample.1"},
    KeyRow{"decoder.upsamples.{upsampler}.time_conv", "decoder.up_blocks.{upsampler}.time_conv"},
};

// Source of llama.cpp's names: gguf-py/gguf/constants.py (TENSOR_NAMES) and tensor_mapping.py.
constexpr std::array kT5Rows{
    KeyRow{"token_embd", "shared"},
    KeyRow{"enc.output_norm", "encoder.final_layer_norm"},
    KeyRow{"enc.blk.{}.attn_q", "encoder.block.{}.layer.0.SelfAttention.q"},
    KeyRow{"enc.blk.{}.attn_k", "encoder.block.{}.layer.0.SelfAttention.k"},
    KeyRow{"enc.blk.{}.attn_v", "encoder.block.{}.layer.0.SelfAttention.v"},
    KeyRow{"enc.blk.{}.attn_o", "encoder.block.{}.layer.0.SelfAttention.o"},
    KeyRow{"enc.blk.{}.attn_rel_b", "encoder.block.{}.layer.0.SelfAttention.relative_attention_bias"},
    KeyRow{"enc.blk.{}.attn_norm", "encoder.block.{}.layer.0.layer_norm"},
    KeyRow{"enc.blk.{}.ffn_gate", "encoder.block.{}.layer.1.DenseReluDense.wi_0"},
    KeyRow{"enc.blk.{}.ffn_up", "encoder.block.{}.layer.1.DenseReluDense.wi_1"},
    KeyRow{"enc.blk.{}.ffn_down", "encoder.block.{}.layer.1.DenseReluDense.wo"},
    KeyRow{"enc.blk.{}.ffn_norm", "encoder.block.{}.layer.1.layer_norm"},
};

// The vision tower's packed projection is stored in three tensors, and its kernel of two frames in two
// (convert_hf_to_gguf.py).
constexpr std::array kQwenRows{
    KeyRow{"token_embd", "model.embed_tokens"},
    KeyRow{"output_norm", "model.norm"},
    KeyRow{"output", "lm_head"},
    KeyRow{"blk.{}.attn_q", "model.layers.{}.self_attn.q_proj"},
    KeyRow{"blk.{}.attn_k", "model.layers.{}.self_attn.k_proj"},
    KeyRow{"blk.{}.attn_v", "model.layers.{}.self_attn.v_proj"},
    KeyRow{"blk.{}.attn_output", "model.layers.{}.self_attn.o_proj"},
    KeyRow{"blk.{}.attn_q_norm", "model.layers.{}.self_attn.q_norm"},
    KeyRow{"blk.{}.attn_k_norm", "model.layers.{}.self_attn.k_norm"},
    KeyRow{"blk.{}.attn_norm", "model.layers.{}.input_layernorm"},
    KeyRow{"blk.{}.ffn_norm", "model.layers.{}.post_attention_layernorm"},
    KeyRow{"blk.{}.ffn_gate", "model.layers.{}.mlp.gate_proj"},
    KeyRow{"blk.{}.ffn_up", "model.layers.{}.mlp.up_proj"},
    KeyRow{"blk.{}.ffn_down", "model.layers.{}.mlp.down_proj"},
    KeyRow{"v.blk.{}.attn_q", "visual.blocks.{}.attn.qkv", kPart, kModule, 0, 3},
    KeyRow{"v.blk.{}.attn_k", "visual.blocks.{}.attn.qkv", kPart, kModule, 1, 3},
    KeyRow{"v.blk.{}.attn_v", "visual.blocks.{}.attn.qkv", kPart, kModule, 2, 3},
    KeyRow{"v.blk.{}.attn_qkv", "visual.blocks.{}.attn.qkv"},
    KeyRow{"v.blk.{}.attn_out", "visual.blocks.{}.attn.proj"},
    KeyRow{"v.blk.{}.ln1", "visual.blocks.{}.norm1"},
    KeyRow{"v.blk.{}.ln2", "visual.blocks.{}.norm2"},
    KeyRow{"v.blk.{}.ffn_gate", "visual.blocks.{}.mlp.gate_proj"},
    KeyRow{"v.blk.{}.ffn_up", "visual.blocks.{}.mlp.up_proj"},
    KeyRow{"v.blk.{}.ffn_down", "visual.blocks.{}.mlp.down_proj"},
    KeyRow{"v.patch_embd.weight", "visual.patch_embed.proj.weight", kFrame, kTensor, 0, 2},
    KeyRow{"v.patch_embd.weight.1", "visual.patch_embed.proj.weight", kFrame, kTensor, 1, 2},
    KeyRow{"v.post_ln", "visual.merger.ln_q"},
    KeyRow{"mm.0", "visual.merger.mlp.0"},
    KeyRow{"mm.2", "visual.merger.mlp.2"},
};

// llama.cpp rotates neighbouring rows of a head, transformers rows of the two halves: its converter
// (convert_hf_to_gguf.py) reorders the rows of queries and keys.
constexpr std::array kMistralRows{
    KeyRow{"token_embd", "model.embed_tokens"},
    KeyRow{"output_norm", "model.norm"},
    KeyRow{"output", "lm_head"},
    KeyRow{"blk.{}.attn_q", "model.layers.{}.self_attn.q_proj", kRotaryPairs},
    KeyRow{"blk.{}.attn_k", "model.layers.{}.self_attn.k_proj", kRotaryPairs, kModule, 1},
    KeyRow{"blk.{}.attn_v", "model.layers.{}.self_attn.v_proj"},
    KeyRow{"blk.{}.attn_output", "model.layers.{}.self_attn.o_proj"},
    KeyRow{"blk.{}.attn_norm", "model.layers.{}.input_layernorm"},
    KeyRow{"blk.{}.ffn_norm", "model.layers.{}.post_attention_layernorm"},
    KeyRow{"blk.{}.ffn_gate", "model.layers.{}.mlp.gate_proj"},
    KeyRow{"blk.{}.ffn_up", "model.layers.{}.mlp.up_proj"},
    KeyRow{"blk.{}.ffn_down", "model.layers.{}.mlp.down_proj"},
};

// The frequencies of rotary embeddings are computed.
constexpr std::array<std::string_view, 1> kLlamaCppIgnored{"rope_freqs.weight"};

// CLIP's temperature, positions that count from 0, and the projection of models that are used without it.
constexpr std::array<std::string_view, 3> kClipIgnored{"logit_scale", "text_model.embeddings.position_ids",
                                                       "embeddings.position_ids"};
// Tokenizers that ComfyUI keeps in the file (models/tokenizers reads them).
constexpr std::array<std::string_view, 3> kTextIgnored{"tekken_model", "spiece_model", "tokenizer_json"};

}  // namespace

constexpr KeyTable kFluxKeys{kFluxRows, {}};
constexpr KeyTable kFlux2Keys{kFlux2Rows, {}};
constexpr KeyTable kSd3Keys{kSd3Rows, {}};
constexpr KeyTable kZImageKeys{kZImageRows, kZImageIgnored};
constexpr KeyTable kLatentDiffusionAutoencoderKeys{kLatentDiffusionRows, {}};
constexpr KeyTable kWanAutoencoderKeys{kWanRows, {}};
constexpr KeyTable kLlamaCppT5Keys{kT5Rows, kLlamaCppIgnored};
constexpr KeyTable kLlamaCppQwenKeys{kQwenRows, kLlamaCppIgnored};
constexpr KeyTable kLlamaCppMistralKeys{kMistralRows, kLlamaCppIgnored};
constexpr std::span<const std::string_view> kIgnoredClipKeys{kClipIgnored};
constexpr std::span<const std::string_view> kIgnoredTextKeys{kTextIgnored};

}  // namespace tessera::models
