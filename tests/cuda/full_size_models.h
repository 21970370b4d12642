// Writes model folders for the fake CUDA: a golden pipeline whose transformer has the full size and depth of a
// published model, with sparse weight files. The text encoders and the autoencoder remain the golden ones, so text has
// their widths; the numbers of tokens are the published model's. WriteWholeFlux writes these components at full size,
// too; only the tokenizers' vocabularies are small.
#pragma once

#include <boost/json.hpp>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/support/sparse_flux_folder.h"
#include "tests/support/test_folder.h"

namespace tessera {

// Output widths of the golden pipelines' text encoders.
inline constexpr int64_t kGoldenText = 32, kGoldenSd3Text = 96, kGoldenSd3Pooled = 80, kGoldenHunyuanPooled = 40;

inline void AddSd3Block(SparseWeights& weights, const std::string& block, int64_t width, bool last, bool norms) {
  weights.AddLinear(block + "norm1.linear", 6 * width, width);
  weights.AddLinear(block + "norm1_context.linear", (last ? 2 : 6) * width, width);
  for (const char* name : {"to_q", "to_k", "to_v", "add_q_proj", "add_k_proj", "add_v_proj", "to_out.0"}) {
    weights.AddLinear(block + "attn." + name, width, width);
  }
  if (!last) weights.AddLinear(block + "attn.to_add_out", width, width);
  for (const char* name : {"norm_q", "norm_k", "norm_added_q", "norm_added_k"}) {
    if (norms) weights.Add(block + "attn." + name + ".weight", {64});
  }
  for (const char* name : {"ff", "ff_context"}) {
    if (last && std::string(name) == "ff_context") continue;
    weights.AddLinear(block + name + ".net.0.proj", 4 * width, width);
    weights.AddLinear(block + name + ".net.2", width, 4 * width);
  }
}

// Stable Diffusion 3 has 64 channels per head, and as many heads as blocks.
inline SparseWeights Sd3Transformer(int64_t blocks, bool norms) {
  const int64_t width = 64 * blocks;
  SparseWeights weights;
  weights.Add("pos_embed.pos_embed", {1, 192 * 192, width});
  weights.AddConv("pos_embed.proj", width, 16, 2);
  weights.AddLinear("context_embedder", width, kGoldenSd3Text);
  weights.AddLinear("time_text_embed.timestep_embedder.linear_1", width, 256);
  weights.AddLinear("time_text_embed.timestep_embedder.linear_2", width, width);
  weights.AddLinear("time_text_embed.text_embedder.linear_1", width, kGoldenSd3Pooled);
  weights.AddLinear("time_text_embed.text_embedder.linear_2", width, width);
  for (int64_t i = 0; i < blocks; ++i) {
    AddSd3Block(weights, absl::StrCat("transformer_blocks.", i, "."), width, i == blocks - 1, norms);
  }
  weights.AddLinear("norm_out.linear", 2 * width, width);
  weights.AddLinear("proj_out", 64, width);
  return weights;
}

inline SparseWeights PixartSigmaTransformer(int64_t text = kGoldenText) {
  constexpr int64_t kWidth = 1152;
  SparseWeights weights;
  weights.AddConv("pos_embed.proj", kWidth, 4, 2);
  weights.AddLinear("adaln_single.emb.timestep_embedder.linear_1", kWidth, 256);
  weights.AddLinear("adaln_single.emb.timestep_embedder.linear_2", kWidth, kWidth);
  weights.AddLinear("adaln_single.linear", 6 * kWidth, kWidth);
  weights.AddLinear("caption_projection.linear_1", kWidth, text);
  weights.AddLinear("caption_projection.linear_2", kWidth, kWidth);
  for (int i = 0; i < 28; ++i) {
    const std::string block = absl::StrCat("transformer_blocks.", i, ".");
    weights.Add(block + "scale_shift_table", {6, kWidth});
    for (const char* attention : {"attn1.", "attn2."}) {
      for (const char* name : {"to_q", "to_k", "to_v", "to_out.0"}) {
        weights.AddLinear(block + attention + name, kWidth, kWidth);
      }
    }
    weights.AddLinear(block + "ff.net.0.proj", 4 * kWidth, kWidth);
    weights.AddLinear(block + "ff.net.2", kWidth, 4 * kWidth);
  }
  weights.Add("scale_shift_table", {2, kWidth});
  weights.AddLinear("proj_out", 32, kWidth);
  return weights;
}

inline SparseWeights HunyuanTransformer() {
  constexpr int64_t kWidth = 1408, kHeadDim = 88, kHidden = 6144, kBlocks = 40;
  SparseWeights weights;
  weights.AddConv("pos_embed.proj", kWidth, 4, 2);
  weights.AddLinear("text_embedder.linear_1", 4 * kGoldenText, kGoldenText);
  weights.AddLinear("text_embedder.linear_2", kGoldenText, 4 * kGoldenText);
  weights.Add("text_embedding_padding", {77 + 256, kGoldenText});
  weights.Add("time_extra_emb.pooler.positional_embedding", {257, kGoldenText});
  for (const char* name : {"q_proj", "k_proj", "v_proj"}) {
    weights.AddLinear(absl::StrCat("time_extra_emb.pooler.", name), kGoldenText, kGoldenText);
  }
  weights.AddLinear("time_extra_emb.pooler.c_proj", kGoldenHunyuanPooled, kGoldenText);
  weights.AddLinear("time_extra_emb.timestep_embedder.linear_1", kWidth, 256);
  weights.AddLinear("time_extra_emb.timestep_embedder.linear_2", kWidth, kWidth);
  weights.AddLinear("time_extra_emb.extra_embedder.linear_1", 4 * kWidth, kGoldenHunyuanPooled);
  weights.AddLinear("time_extra_emb.extra_embedder.linear_2", kWidth, 4 * kWidth);
  for (int64_t i = 0; i < kBlocks; ++i) {
    const std::string block = absl::StrCat("blocks.", i, ".");
    weights.AddNorm(block + "norm1.norm", kWidth);
    weights.AddLinear(block + "norm1.linear", kWidth, kWidth);
    weights.AddNorm(block + "norm2", kWidth);
    weights.AddNorm(block + "norm3", kWidth);
    for (const char* attention : {"attn1.", "attn2."}) {
      const int64_t keys = std::string(attention) == "attn2." ? kGoldenText : kWidth;
      weights.AddLinear(block + attention + "to_q", kWidth, kWidth);
      weights.AddLinear(block + attention + "to_k", kWidth, keys);
      weights.AddLinear(block + attention + "to_v", kWidth, keys);
      weights.AddLinear(block + attention + "to_out.0", kWidth, kWidth);
      weights.AddNorm(block + attention + "norm_q", kHeadDim);
      weights.AddNorm(block + attention + "norm_k", kHeadDim);
    }
    weights.AddLinear(block + "ff.net.0.proj", kHidden, kWidth);
    weights.AddLinear(block + "ff.net.2", kWidth, kHidden);
    if (i <= kBlocks / 2) continue;  // blocks of the second half use outputs of the first half
    weights.AddNorm(block + "skip_norm", 2 * kWidth);
    weights.AddLinear(block + "skip_linear", kWidth, 2 * kWidth);
  }
  weights.AddLinear("norm_out.linear", 2 * kWidth, kWidth);
  weights.AddLinear("proj_out", 32, kWidth);
  return weights;
}

// Rewrites a component of the folder. `changes` are fields of its configuration, `stem` is the name of its weight
// files.
inline void ReplaceComponent(const TestFolder& folder, const std::string& component, const SparseWeights& weights,
                             const std::string& stem, const boost::json::object& changes) {
  const std::string path = folder / component;
  std::ifstream file(path + "/config.json");
  boost::json::value config = boost::json::parse(std::string(std::istreambuf_iterator<char>(file), {}));
  for (const auto& [field, value] : changes) config.as_object()[field] = value;
  std::filesystem::remove_all(path);
  folder.Write(component + "/config.json", boost::json::serialize(config));
  weights.Write(folder, component + "/" + stem, kShard);
}

// `changes` are fields of the transformer's configuration.
inline void WriteFullSize(const TestFolder& folder, const std::string& name, const std::string& golden,
                          const SparseWeights& transformer, const boost::json::object& changes,
                          const std::string& goldens = "golden") {
  std::filesystem::copy(absl::StrCat("tests/", goldens, "/pipelines/", golden), folder / name,
                        std::filesystem::copy_options::recursive);
  ReplaceComponent(folder, name + "/transformer", transformer, "diffusion_pytorch_model", changes);
}

// `text`, `pooled`: the widths of its text encoders' outputs.
inline void WriteFullSizeFlux(const TestFolder& folder, int64_t text = kGoldenText, int64_t pooled = kGoldenText) {
  WriteFullSize(folder, "flux_dev", "flux_dev", FluxTransformer(text, pooled),
                {{"attention_head_dim", 128},
                 {"num_attention_heads", 24},
                 {"num_layers", 19},
                 {"num_single_layers", 38},
                 {"axes_dims_rope", {16, 56, 56}},
                 {"joint_attention_dim", text},
                 {"pooled_projection_dim", pooled}});
}

// Writes the text encoders and the autoencoder of FLUX.1-dev at full size into a folder flux_dev.
inline void WriteFullSizeParts(const TestFolder& folder) {
  ReplaceComponent(folder, "flux_dev/text_encoder", ClipLarge(), "model",
                   {{"hidden_size", 768},
                    {"intermediate_size", 3072},
                    {"num_attention_heads", 12},
                    {"num_hidden_layers", 12},
                    {"projection_dim", 768},
                    {"vocab_size", 49408}});
  ReplaceComponent(
      folder, "flux_dev/text_encoder_2", T5Xxl(), "model",
      {{"d_ff", 10240}, {"d_kv", 64}, {"d_model", 4096}, {"num_heads", 64}, {"num_layers", 24}, {"vocab_size", 32128}});
  ReplaceComponent(folder, "flux_dev/vae", FluxAutoencoder(), "diffusion_pytorch_model",
                   {{"block_out_channels", {128, 256, 512, 512}}, {"layers_per_block", 2}, {"norm_num_groups", 32}});
}

inline void WriteWholeFlux(const TestFolder& folder) {
  WriteFullSizeFlux(folder, 4096, 768);
  WriteFullSizeParts(folder);
}

inline void WriteFullSizeSd3(const TestFolder& folder, const std::string& name, int64_t blocks, bool norms) {
  WriteFullSize(folder, name, "sd3", Sd3Transformer(blocks, norms),
                {{"attention_head_dim", 64},
                 {"num_attention_heads", blocks},
                 {"num_layers", blocks},
                 {"caption_projection_dim", 64 * blocks},
                 {"pos_embed_max_size", 192},
                 {"sample_size", 128},
                 {"qk_norm", norms ? boost::json::value("rms_norm") : boost::json::value()}});
}

inline void WriteFullSizePixartSigma(const TestFolder& folder, int64_t text = kGoldenText) {
  WriteFullSize(folder, "pixart_sigma", "pixart_sigma", PixartSigmaTransformer(text),
                {{"attention_head_dim", 72},
                 {"num_attention_heads", 16},
                 {"num_layers", 28},
                 {"cross_attention_dim", 1152},
                 {"caption_channels", text},
                 {"sample_size", 128}});
}

// With the first blocks of its text encoder, T5-XXL.
inline void WritePixartSigmaWithT5(const TestFolder& folder, int blocks) {
  WriteFullSizePixartSigma(folder, 4096);
  ReplaceComponent(folder, "pixart_sigma/text_encoder", T5Xxl(blocks), "model",
                   {{"d_ff", 10240},
                    {"d_kv", 64},
                    {"d_model", 4096},
                    {"num_heads", 64},
                    {"num_layers", blocks},
                    {"vocab_size", 32128}});
}

inline void WriteFullSizeHunyuan(const TestFolder& folder) {
  WriteFullSize(folder, "hunyuan", "hunyuan12", HunyuanTransformer(),
                {{"attention_head_dim", 88}, {"num_attention_heads", 16}, {"num_layers", 40}, {"hidden_size", 1408}});
}

}  // namespace tessera
