// Writes a model folder with the weights of FLUX.1-dev according to its headers, 12 billion in the transformer alone,
// and holes in place of their bytes. It takes less than a megabyte on disk.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/support/safetensors_bytes.h"
#include "tests/support/test_folder.h"

namespace tessera {

// The size of a published weight file, in bytes.
inline constexpr int64_t kShard = 9'990'000'000;

// Weight files of bf16 zeros that occupy no disk blocks.
class SparseWeights {
 public:
  void Add(const std::string& name, std::vector<int64_t> shape) { tensors_.emplace_back(name, std::move(shape)); }
  void AddLinear(const std::string& name, int64_t out, int64_t in) {
    Add(name + ".weight", {out, in});
    Add(name + ".bias", {out});
  }
  void AddNorm(const std::string& name, int64_t width) {
    Add(name + ".weight", {width});
    Add(name + ".bias", {width});
  }

  void AddConv(const std::string& name, int64_t out, int64_t in, int64_t side = 3) {
    Add(name + ".weight", {out, in, side, side});
    Add(name + ".bias", {out});
  }

  // Writes several files with an index if one would exceed `max_file_bytes`, as diffusers and transformers do.
  void Write(const TestFolder& folder, const std::string& stem, int64_t max_file_bytes) const {
    std::vector<std::vector<size_t>> shards(1);
    int64_t bytes = 0;
    for (size_t i = 0; i < tensors_.size(); ++i) {
      if (bytes + Bytes(i) > max_file_bytes) {
        shards.emplace_back();
        bytes = 0;
      }
      bytes += Bytes(i);
      shards.back().push_back(i);
    }
    std::vector<std::string> map;
    for (size_t shard = 0; shard < shards.size(); ++shard) {
      const std::string part = shards.size() == 1 ? "" : absl::StrCat("-", shard + 1, "-of-", shards.size());
      const std::string path = stem + part + ".safetensors";
      for (const size_t i : shards[shard]) {
        map.push_back(
            absl::StrCat("\"", tensors_[i].first, "\":\"", std::filesystem::path(path).filename().string(), "\""));
      }
      WriteFile(folder, path, shards[shard]);
    }
    if (shards.size() > 1) {
      folder.Write(stem + ".safetensors.index.json", absl::StrCat("{\"weight_map\":{", absl::StrJoin(map, ","), "}}"));
    }
  }

 private:
  int64_t Bytes(size_t i) const {
    int64_t bytes = 2;
    for (const int64_t size : tensors_[i].second) bytes *= size;
    return bytes;
  }

  void WriteFile(const TestFolder& folder, const std::string& path, const std::vector<size_t>& tensors) const {
    std::vector<std::string> entries;
    int64_t end = 0;
    for (const size_t i : tensors) {
      const int64_t begin = std::exchange(end, end + Bytes(i));
      entries.push_back(absl::StrCat("\"", tensors_[i].first, "\":{\"dtype\":\"BF16\",\"shape\":[",
                                     absl::StrJoin(tensors_[i].second, ","), "],\"data_offsets\":[", begin, ",", end,
                                     "]}"));
    }
    const std::string header = SafetensorsBytes(absl::StrCat("{", absl::StrJoin(entries, ","), "}"), "");
    const std::string file = folder.Write(path, header);
    ASSERT_EQ(truncate(file.c_str(), static_cast<off_t>(header.size()) + end), 0) << file;
  }

  std::vector<std::pair<std::string, std::vector<int64_t>>> tensors_;
};

// `text`, `pooled`: the widths of its text encoders' outputs.
inline SparseWeights FluxTransformer(int64_t text = 4096, int64_t pooled = 768) {
  constexpr int64_t kWidth = 3072, kHeadDim = 128;
  SparseWeights weights;
  weights.AddLinear("x_embedder", kWidth, 64);
  weights.AddLinear("context_embedder", kWidth, text);
  for (const auto& [name, in] : {std::pair<const char*, int64_t>("timestep_embedder", 256),
                                 {"guidance_embedder", 256},
                                 {"text_embedder", pooled}}) {
    weights.AddLinear(absl::StrCat("time_text_embed.", name, ".linear_1"), kWidth, in);
    weights.AddLinear(absl::StrCat("time_text_embed.", name, ".linear_2"), kWidth, kWidth);
  }
  for (int i = 0; i < 19; ++i) {
    const std::string block = absl::StrCat("transformer_blocks.", i, ".");
    for (const char* name : {"norm1", "norm1_context"}) weights.AddLinear(block + name + ".linear", 6 * kWidth, kWidth);
    for (const char* name :
         {"to_q", "to_k", "to_v", "add_q_proj", "add_k_proj", "add_v_proj", "to_out.0", "to_add_out"}) {
      weights.AddLinear(block + "attn." + name, kWidth, kWidth);
    }
    for (const char* name : {"norm_q", "norm_k", "norm_added_q", "norm_added_k"}) {
      weights.Add(block + "attn." + name + ".weight", {kHeadDim});
    }
    for (const char* name : {"ff", "ff_context"}) {
      weights.AddLinear(block + name + ".net.0.proj", 4 * kWidth, kWidth);
      weights.AddLinear(block + name + ".net.2", kWidth, 4 * kWidth);
    }
  }
  for (int i = 0; i < 38; ++i) {
    const std::string block = absl::StrCat("single_transformer_blocks.", i, ".");
    weights.AddLinear(block + "norm.linear", 3 * kWidth, kWidth);
    weights.AddLinear(block + "proj_mlp", 4 * kWidth, kWidth);
    weights.AddLinear(block + "proj_out", kWidth, 5 * kWidth);
    for (const char* name : {"to_q", "to_k", "to_v"}) weights.AddLinear(block + "attn." + name, kWidth, kWidth);
    for (const char* name : {"norm_q", "norm_k"}) weights.Add(block + "attn." + name + ".weight", {kHeadDim});
  }
  weights.AddLinear("norm_out.linear", 2 * kWidth, kWidth);
  weights.AddLinear("proj_out", 64, kWidth);
  return weights;
}

inline SparseWeights T5Xxl(int blocks = 24) {
  SparseWeights weights;
  weights.Add("shared.weight", {32128, 4096});
  for (int i = 0; i < blocks; ++i) {
    const std::string block = absl::StrCat("encoder.block.", i, ".layer.");
    for (const char* name : {"q", "k", "v", "o"}) {
      weights.Add(block + "0.SelfAttention." + name + ".weight", {4096, 4096});
    }
    if (i == 0) weights.Add(block + "0.SelfAttention.relative_attention_bias.weight", {32, 64});
    for (const char* name : {"wi_0", "wi_1"})
      weights.Add(block + "1.DenseReluDense." + name + ".weight", {10240, 4096});
    weights.Add(block + "1.DenseReluDense.wo.weight", {4096, 10240});
    for (const char* layer : {"0", "1"}) weights.Add(block + layer + ".layer_norm.weight", {4096});
  }
  weights.Add("encoder.final_layer_norm.weight", {4096});
  return weights;
}

inline SparseWeights ClipLarge() {
  SparseWeights weights;
  weights.Add("text_model.embeddings.token_embedding.weight", {49408, 768});
  weights.Add("text_model.embeddings.position_embedding.weight", {77, 768});
  for (int i = 0; i < 12; ++i) {
    const std::string layer = absl::StrCat("text_model.encoder.layers.", i, ".");
    for (const char* name : {"q_proj", "k_proj", "v_proj", "out_proj"}) {
      weights.AddLinear(layer + "self_attn." + name, 768, 768);
    }
    for (const char* name : {"layer_norm1", "layer_norm2"}) weights.AddNorm(layer + name, 768);
    weights.AddLinear(layer + "mlp.fc1", 3072, 768);
    weights.AddLinear(layer + "mlp.fc2", 768, 3072);
  }
  weights.AddNorm("text_model.final_layer_norm", 768);
  return weights;
}

inline void AddResnet(SparseWeights& weights, const std::string& name, int64_t in, int64_t out) {
  weights.AddNorm(name + ".norm1", in);
  weights.AddConv(name + ".conv1", out, in);
  weights.AddNorm(name + ".norm2", out);
  weights.AddConv(name + ".conv2", out, out);
  if (in != out) weights.AddConv(name + ".conv_shortcut", out, in, 1);
}

// FLUX.1's autoencoder, which has Stable Diffusion's channels and 16 latent channels.
inline SparseWeights FluxAutoencoder() {
  constexpr int64_t kLatent = 16, kPixel = 3;
  const std::vector<int64_t> channels = {128, 256, 512, 512};
  SparseWeights weights;
  const auto add_middle = [&](const std::string& part) {
    for (const char* name : {"0", "1"}) AddResnet(weights, part + "mid_block.resnets." + name, 512, 512);
    weights.AddNorm(part + "mid_block.attentions.0.group_norm", 512);
    for (const char* name : {"to_q", "to_k", "to_v", "to_out.0"}) {
      weights.AddLinear(part + "mid_block.attentions.0." + name, 512, 512);
    }
  };
  weights.AddConv("encoder.conv_in", channels.front(), kPixel);
  weights.AddConv("decoder.conv_in", channels.back(), kLatent);
  for (const char* part : {"encoder.", "decoder."}) add_middle(part);
  int64_t down = channels.front(), up = channels.back();
  for (size_t i = 0; i < channels.size(); ++i) {
    const std::string encoder = absl::StrCat("encoder.down_blocks.", i, "."),
                      decoder = absl::StrCat("decoder.up_blocks.", i, ".");
    for (int resnet = 0; resnet < 2; ++resnet) {
      AddResnet(weights, absl::StrCat(encoder, "resnets.", resnet), std::exchange(down, channels[i]), channels[i]);
    }
    const int64_t of_decoder = channels[channels.size() - 1 - i];
    for (int resnet = 0; resnet < 3; ++resnet) {
      AddResnet(weights, absl::StrCat(decoder, "resnets.", resnet), std::exchange(up, of_decoder), of_decoder);
    }
    if (i + 1 == channels.size()) continue;
    weights.AddConv(encoder + "downsamplers.0.conv", down, down);
    weights.AddConv(decoder + "upsamplers.0.conv", up, up);
  }
  weights.AddNorm("encoder.conv_norm_out", channels.back());
  weights.AddNorm("decoder.conv_norm_out", channels.front());
  weights.AddConv("encoder.conv_out", 2 * kLatent, channels.back());
  weights.AddConv("decoder.conv_out", kPixel, channels.front());
  return weights;
}

// Writes weights only; the configurations of the components are missing.
inline void WriteSparseFlux(const TestFolder& folder) {
  folder.Write("model_index.json", R"({"_class_name": "FluxPipeline",
      "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"], "tokenizer": ["transformers", "CLIPTokenizer"],
      "text_encoder": ["transformers", "CLIPTextModel"], "text_encoder_2": ["transformers", "T5EncoderModel"],
      "transformer": ["diffusers", "FluxTransformer2DModel"], "vae": ["diffusers", "AutoencoderKL"]})");
  for (const char* name : {"scheduler", "tokenizer"}) std::filesystem::create_directory(folder / name);
  FluxTransformer().Write(folder, "transformer/diffusion_pytorch_model", kShard);
  T5Xxl().Write(folder, "text_encoder_2/model", kShard / 2);
  ClipLarge().Write(folder, "text_encoder/model", kShard);
  FluxAutoencoder().Write(folder, "vae/diffusion_pytorch_model", kShard);
}

}  // namespace tessera
