// Writes GGUF files with the tensors of published models, of full size, and holes in place of their bytes: blocks of
// zeros are valid in every type. Such a file takes less than a megabyte on disk.
//
// The types are those of files that are named Q4_K: tensors of one dimension in F32, modules outside the blocks in F16,
// the matrices of the first and the last block in Q6_K, all others in Q4_K.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/support/gguf_bytes.h"
#include "tests/support/test_folder.h"

namespace tessera {

// A type of ggml: its number in the file, and the values and bytes of a block.
struct GgmlType {
  uint32_t number = 0;
  uint64_t values = 1, bytes = 4;
};
inline constexpr GgmlType kGgmlF32{0, 1, 4}, kGgmlF16{1, 1, 2}, kGgmlQ8_0{8, 32, 34}, kGgmlQ4K{12, 256, 144},
    kGgmlQ6K{14, 256, 210};

class SparseGguf {
 public:
  explicit SparseGguf(const std::string& architecture) { gguf_.Text("general.architecture", architecture); }

  void Add(const std::string& name, uint64_t rows, uint64_t columns, const GgmlType& type) {
    gguf_.Tensor(name, {columns, rows}, type.number, end_);
    Advance(rows * (columns / type.values) * type.bytes);
  }
  void AddVector(const std::string& name, uint64_t size) {
    gguf_.Tensor(name, {size}, kGgmlF32.number, end_);
    Advance(size * kGgmlF32.bytes);
  }
  // With a bias.
  void AddLinear(const std::string& name, uint64_t rows, uint64_t columns, const GgmlType& type) {
    Add(name + ".weight", rows, columns, type);
    AddVector(name + ".bias", rows);
  }

  void Write(const TestFolder& folder, const std::string& path) const {
    const std::string header = gguf_.Bytes("");
    const std::string file = folder.Write(path, header);
    ASSERT_EQ(truncate(file.c_str(), static_cast<off_t>(header.size() + end_)), 0) << file;
  }

 private:
  void Advance(uint64_t bytes) {
    constexpr uint64_t kAlignment = 32;
    end_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }

  GgufBytes gguf_;
  uint64_t end_ = 0;
};

// The type of the matrices of block `i` of so many.
inline const GgmlType& TypeOfBlock(int64_t i, int64_t blocks) {
  return i == 0 || i + 1 == blocks ? kGgmlQ6K : kGgmlQ4K;
}

// FLUX.1-dev under its authors' names. `text`, `pooled`: the widths of its text encoders' outputs.
inline SparseGguf FluxGguf(int64_t text, int64_t pooled) {
  constexpr int64_t kWidth = 3072, kHeadDim = 128, kDouble = 19, kSingle = 38;
  SparseGguf gguf("flux");
  gguf.AddLinear("img_in", kWidth, 64, kGgmlF16);
  gguf.AddLinear("txt_in", kWidth, text, kGgmlF16);
  for (const auto& [name, in] :
       {std::pair<const char*, int64_t>("time_in", 256), {"guidance_in", 256}, {"vector_in", pooled}}) {
    gguf.AddLinear(absl::StrCat(name, ".in_layer"), kWidth, in, kGgmlF16);
    gguf.AddLinear(absl::StrCat(name, ".out_layer"), kWidth, kWidth, kGgmlF16);
  }
  for (int64_t i = 0; i < kDouble; ++i) {
    const GgmlType& type = TypeOfBlock(i, kDouble + kSingle);
    for (const char* stream : {"img", "txt"}) {
      const std::string part = absl::StrCat("double_blocks.", i, ".", stream, "_");
      gguf.AddLinear(part + "mod.lin", 6 * kWidth, kWidth, type);
      gguf.AddLinear(part + "attn.qkv", 3 * kWidth, kWidth, type);
      gguf.AddLinear(part + "attn.proj", kWidth, kWidth, type);
      for (const char* norm : {"query", "key"}) gguf.AddVector(part + "attn.norm." + norm + "_norm.scale", kHeadDim);
      gguf.AddLinear(part + "mlp.0", 4 * kWidth, kWidth, type);
      gguf.AddLinear(part + "mlp.2", kWidth, 4 * kWidth, type);
    }
  }
  for (int64_t i = 0; i < kSingle; ++i) {
    const GgmlType& type = TypeOfBlock(kDouble + i, kDouble + kSingle);
    const std::string block = absl::StrCat("single_blocks.", i, ".");
    gguf.AddLinear(block + "modulation.lin", 3 * kWidth, kWidth, type);
    gguf.AddLinear(block + "linear1", 7 * kWidth, kWidth, type);
    gguf.AddLinear(block + "linear2", kWidth, 5 * kWidth, type);
    for (const char* norm : {"query", "key"}) gguf.AddVector(block + "norm." + norm + "_norm.scale", kHeadDim);
  }
  gguf.AddLinear("final_layer.adaLN_modulation.1", 2 * kWidth, kWidth, kGgmlF16);
  gguf.AddLinear("final_layer.linear", 64, kWidth, kGgmlF16);
  return gguf;
}

// FLUX.2-dev under its authors' names.
inline SparseGguf Flux2DevGguf(int64_t text) {
  constexpr int64_t kWidth = 6144, kHeadDim = 128, kMlp = 3 * kWidth, kDouble = 8, kSingle = 48;
  SparseGguf gguf("flux");
  gguf.Add("img_in.weight", kWidth, 128, kGgmlF16);
  gguf.Add("txt_in.weight", kWidth, text, kGgmlF16);
  for (const char* name : {"time_in", "guidance_in"}) {
    gguf.Add(absl::StrCat(name, ".in_layer.weight"), kWidth, 256, kGgmlF16);
    gguf.Add(absl::StrCat(name, ".out_layer.weight"), kWidth, kWidth, kGgmlF16);
  }
  gguf.Add("double_stream_modulation_img.lin.weight", 6 * kWidth, kWidth, kGgmlF16);
  gguf.Add("double_stream_modulation_txt.lin.weight", 6 * kWidth, kWidth, kGgmlF16);
  gguf.Add("single_stream_modulation.lin.weight", 3 * kWidth, kWidth, kGgmlF16);
  for (int64_t i = 0; i < kDouble; ++i) {
    const GgmlType& type = TypeOfBlock(i, kDouble + kSingle);
    for (const char* stream : {"img", "txt"}) {
      const std::string part = absl::StrCat("double_blocks.", i, ".", stream, "_");
      gguf.Add(part + "attn.qkv.weight", 3 * kWidth, kWidth, type);
      gguf.Add(part + "attn.proj.weight", kWidth, kWidth, type);
      for (const char* norm : {"query", "key"}) gguf.AddVector(part + "attn.norm." + norm + "_norm.scale", kHeadDim);
      gguf.Add(part + "mlp.0.weight", 2 * kMlp, kWidth, type);
      gguf.Add(part + "mlp.2.weight", kWidth, kMlp, type);
    }
  }
  for (int64_t i = 0; i < kSingle; ++i) {
    const GgmlType& type = TypeOfBlock(kDouble + i, kDouble + kSingle);
    const std::string block = absl::StrCat("single_blocks.", i, ".");
    gguf.Add(block + "linear1.weight", 3 * kWidth + 2 * kMlp, kWidth, type);
    gguf.Add(block + "linear2.weight", kWidth, kWidth + kMlp, type);
    for (const char* norm : {"query", "key"}) gguf.AddVector(block + "norm." + norm + "_norm.scale", kHeadDim);
  }
  gguf.Add("final_layer.adaLN_modulation.1.weight", 2 * kWidth, kWidth, kGgmlF16);
  gguf.Add("final_layer.linear.weight", 128, kWidth, kGgmlF16);
  return gguf;
}

// Qwen-Image under the names of its authors, which are those of diffusers.
inline SparseGguf QwenImageGguf(int64_t text) {
  constexpr int64_t kWidth = 3072, kHeadDim = 128, kBlocks = 60, kPatch = 64;
  SparseGguf gguf("qwen_image");
  gguf.AddLinear("img_in", kWidth, kPatch, kGgmlF16);
  gguf.AddLinear("txt_in", kWidth, text, kGgmlF16);
  gguf.AddVector("txt_norm.weight", text);
  gguf.AddLinear("time_text_embed.timestep_embedder.linear_1", kWidth, 256, kGgmlF16);
  gguf.AddLinear("time_text_embed.timestep_embedder.linear_2", kWidth, kWidth, kGgmlF16);
  for (int64_t i = 0; i < kBlocks; ++i) {
    const GgmlType& type = TypeOfBlock(i, kBlocks);
    const std::string block = absl::StrCat("transformer_blocks.", i, ".");
    for (const char* name :
         {"to_q", "to_k", "to_v", "add_q_proj", "add_k_proj", "add_v_proj", "to_out.0", "to_add_out"}) {
      gguf.AddLinear(block + "attn." + name, kWidth, kWidth, type);
    }
    for (const char* norm : {"norm_q", "norm_k", "norm_added_q", "norm_added_k"}) {
      gguf.AddVector(block + "attn." + norm + ".weight", kHeadDim);
    }
    for (const char* stream : {"img", "txt"}) {
      gguf.AddLinear(block + stream + "_mod.1", 6 * kWidth, kWidth, type);
      gguf.AddLinear(block + stream + "_mlp.net.0.proj", 4 * kWidth, kWidth, type);
      gguf.AddLinear(block + stream + "_mlp.net.2", kWidth, 4 * kWidth, type);
    }
  }
  gguf.AddLinear("norm_out.linear", 2 * kWidth, kWidth, kGgmlF16);
  gguf.AddLinear("proj_out", kPatch, kWidth, kGgmlF16);
  return gguf;
}

// T5-XXL under llama.cpp's names, with all matrices in Q8_0.
inline SparseGguf T5Gguf() {
  constexpr int64_t kWidth = 4096, kHidden = 10240;
  SparseGguf gguf("t5encoder");
  gguf.Add("token_embd.weight", 32128, kWidth, kGgmlQ8_0);
  for (int i = 0; i < 24; ++i) {
    const std::string block = absl::StrCat("enc.blk.", i, ".");
    for (const char* name : {"attn_q", "attn_k", "attn_v", "attn_o"}) {
      gguf.Add(block + name + ".weight", kWidth, kWidth, kGgmlQ8_0);
    }
    if (i == 0) gguf.Add(block + "attn_rel_b.weight", 32, 64, kGgmlF16);
    for (const char* name : {"ffn_gate", "ffn_up"}) gguf.Add(block + name + ".weight", kHidden, kWidth, kGgmlQ8_0);
    gguf.Add(block + "ffn_down.weight", kWidth, kHidden, kGgmlQ8_0);
    for (const char* name : {"attn_norm", "ffn_norm"}) gguf.AddVector(block + name + ".weight", kWidth);
  }
  gguf.AddVector("enc.output_norm.weight", kWidth);
  return gguf;
}

// Writes `name`.gguf beside the components of a golden pipeline.
inline void WriteGgufModel(const TestFolder& folder, const std::string& name, const std::string& golden,
                           const SparseGguf& transformer) {
  std::filesystem::copy("tests/" + golden, folder / name, std::filesystem::copy_options::recursive);
  for (const char* part : {"/model_index.json", "/scheduler", "/transformer"}) {
    std::filesystem::remove_all(folder / (name + part));
  }
  transformer.Write(folder, name + "/" + name + ".gguf");
}

}  // namespace tessera
