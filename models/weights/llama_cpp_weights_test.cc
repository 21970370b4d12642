// Reads text encoders in GGUF files as llama.cpp's converter (convert_hf_to_gguf.py) writes them: the rows of Mistral's
// queries and keys are reordered, and the vision tower of Qwen2.5-VL is in a file of its own, in parts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "base/macros/status_macros.h"
#include "models/keymaps/key_map.h"
#include "models/weights/model_folder.h"
#include "tests/support/gguf_bytes.h"
#include "tests/support/test_folder.h"

namespace tessera::models {
namespace {

using ::testing::HasSubstr;

// A tensor of fp32; its values are all different.
struct Values {
  std::vector<int64_t> shape;
  std::vector<float> values;
};

Values Counting(std::vector<int64_t> shape, float first) {
  const int64_t count = std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
  Values made{std::move(shape), std::vector<float>(static_cast<size_t>(count))};
  std::iota(made.values.begin(), made.values.end(), first);
  return made;
}

// The rows [begin, begin + count).
Values Rows(const Values& from, int64_t begin, int64_t count) {
  Values rows{from.shape, {}};
  const auto row = static_cast<std::ptrdiff_t>(from.values.size()) / from.shape[0];
  rows.shape[0] = count;
  rows.values.assign(from.values.begin() + begin * row, from.values.begin() + (begin + count) * row);
  return rows;
}

// How the converter reorders: reshape(heads, 2, head_dim / 2, in), exchange the second and the third axis, reshape
// back.
Values Permuted(const Values& from, int64_t heads) {
  const int64_t half = from.shape[0] / heads / 2, in = from.shape[1];
  Values to = from;
  for (int64_t head = 0; head < heads; ++head) {
    for (int64_t part = 0; part < 2; ++part) {
      for (int64_t i = 0; i < half; ++i) {
        const int64_t own = (head * 2 + part) * half + i, stored = (head * half + i) * 2 + part;
        std::copy_n(from.values.begin() + own * in, in, to.values.begin() + stored * in);
      }
    }
  }
  return to;
}

// One frame of a kernel [out, in, frames, height, width].
Values Frame(const Values& kernel, int64_t frame) {
  const int64_t pairs = kernel.shape[0] * kernel.shape[1], frames = kernel.shape[2];
  const int64_t size = kernel.shape[3] * kernel.shape[4];
  Values to{{kernel.shape[0], kernel.shape[1], kernel.shape[3], kernel.shape[4]}, {}};
  for (int64_t pair = 0; pair < pairs; ++pair) {
    const auto begin = kernel.values.begin() + (pair * frames + frame) * size;
    to.values.insert(to.values.end(), begin, begin + size);
  }
  return to;
}

std::string WriteGguf(const TestFolder& folder, const std::string& name, const std::string& architecture,
                      const std::map<std::string, Values>& tensors) {
  GgufBytes gguf;
  gguf.Text("general.architecture", architecture);
  std::string data;
  for (const auto& [key, values] : tensors) {
    data.resize((data.size() + 31) / 32 * 32, '\0');
    gguf.Tensor(key, std::vector<uint64_t>(values.shape.rbegin(), values.shape.rend()), 0, data.size());
    data.append(reinterpret_cast<const char*>(values.values.data()), values.values.size() * sizeof(float));
  }
  data.resize((data.size() + 31) / 32 * 32, '\0');
  return folder.Write(name, gguf.Bytes(data));
}

// Expects the weights of the file to be these, under transformers' names.
void ExpectWeights(WeightFolder weights, const std::map<std::string, Values>& expected) {
  const absl::Status named = weights.Name([&](std::string_view name) -> const std::vector<int64_t>* {
    const auto found = expected.find(std::string(name));
    return found == expected.end() ? nullptr : &found->second.shape;
  });
  ASSERT_TRUE(named.ok()) << named;
  EXPECT_EQ(weights.tensors().size(), expected.size());
  for (const auto& [name, values] : expected) {
    const auto found = weights.tensors().find(name);
    ASSERT_NE(found, weights.tensors().end()) << name;
    EXPECT_EQ(found->second.tensor.shape, values.shape) << name;
    std::vector<float> read(values.values.size());
    const absl::Status status = weights.Read(found->second, 0, std::as_writable_bytes(std::span(read)));
    ASSERT_TRUE(status.ok()) << name << ": " << status;
    EXPECT_EQ(read, values.values) << name;
  }
}

// Opens the text encoder of a file, and of a second one if `more` is not empty.
absl::StatusOr<WeightFolder> OpenEncoder(const std::string& path, const std::string& class_name,
                                         const base::Json& config, const std::string& more = "") {
  ASSIGN_OR_RETURN(ComponentSource source, FileSource(path, "text_encoder", class_name));
  source.more = more;
  return OpenSource(source, class_name, config);
}

TEST(LlamaCppWeightsTest, TheRowsOfMistralsQueriesAndKeysAreInTheirOwnOrder) {
  const std::map<std::string, Values> model = {
      {"model.embed_tokens.weight", Counting({6, 8}, 0)},
      {"model.norm.weight", Counting({8}, 100)},
      {"model.layers.0.self_attn.q_proj.weight", Counting({32, 8}, 1000)},
      {"model.layers.0.self_attn.k_proj.weight", Counting({16, 8}, 2000)},
      {"model.layers.0.self_attn.v_proj.weight", Counting({16, 8}, 3000)},
      {"model.layers.0.mlp.gate_proj.weight", Counting({4, 8}, 4000)},
  };
  const TestFolder folder;
  const std::string path =
      WriteGguf(folder, "mistral.gguf", "llama",
                {{"token_embd.weight", model.at("model.embed_tokens.weight")},
                 {"output_norm.weight", model.at("model.norm.weight")},
                 {"blk.0.attn_q.weight", Permuted(model.at("model.layers.0.self_attn.q_proj.weight"), 4)},
                 {"blk.0.attn_k.weight", Permuted(model.at("model.layers.0.self_attn.k_proj.weight"), 2)},
                 {"blk.0.attn_v.weight", model.at("model.layers.0.self_attn.v_proj.weight")},
                 {"blk.0.ffn_gate.weight", model.at("model.layers.0.mlp.gate_proj.weight")},
                 {"rope_freqs.weight", Counting({4}, 0)}});
  const auto config =
      base::ParseJson(R"({"text_config": {"num_attention_heads": 4, "num_key_value_heads": 2}})", "config");
  absl::StatusOr<WeightFolder> weights = OpenEncoder(path, "Mistral3ForConditionalGeneration", *config);
  ASSERT_TRUE(weights.ok()) << weights.status();
  ExpectWeights(*std::move(weights), model);
}

TEST(LlamaCppWeightsTest, TheVisionTowerOfQwenIsReadFromItsOwnFile) {
  const std::map<std::string, Values> model = {
      {"model.embed_tokens.weight", Counting({6, 8}, 0)},
      {"model.layers.0.self_attn.q_proj.weight", Counting({8, 8}, 100)},
      {"model.layers.0.self_attn.q_proj.bias", Counting({8}, 200)},
      {"visual.blocks.0.attn.qkv.weight", Counting({12, 4}, 1000)},
      {"visual.blocks.0.attn.qkv.bias", Counting({12}, 2000)},
      {"visual.blocks.0.norm1.weight", Counting({4}, 3000)},
      {"visual.patch_embed.proj.weight", Counting({4, 3, 2, 2, 2}, 4000)},
      {"visual.merger.mlp.0.weight", Counting({8, 16}, 5000)},
  };
  const Values &qkv = model.at("visual.blocks.0.attn.qkv.weight"), &bias = model.at("visual.blocks.0.attn.qkv.bias");
  const Values& kernel = model.at("visual.patch_embed.proj.weight");
  const std::map<std::string, Values> language = {
      {"token_embd.weight", model.at("model.embed_tokens.weight")},
      {"blk.0.attn_q.weight", model.at("model.layers.0.self_attn.q_proj.weight")},
      {"blk.0.attn_q.bias", model.at("model.layers.0.self_attn.q_proj.bias")}};
  const std::map<std::string, Values> tower = {{"v.blk.0.attn_q.weight", Rows(qkv, 0, 4)},
                                               {"v.blk.0.attn_k.weight", Rows(qkv, 4, 4)},
                                               {"v.blk.0.attn_v.weight", Rows(qkv, 8, 4)},
                                               {"v.blk.0.attn_q.bias", Rows(bias, 0, 4)},
                                               {"v.blk.0.attn_k.bias", Rows(bias, 4, 4)},
                                               {"v.blk.0.attn_v.bias", Rows(bias, 8, 4)},
                                               {"v.blk.0.ln1.weight", model.at("visual.blocks.0.norm1.weight")},
                                               {"v.patch_embd.weight", Frame(kernel, 0)},
                                               {"v.patch_embd.weight.1", Frame(kernel, 1)},
                                               {"mm.0.weight", model.at("visual.merger.mlp.0.weight")}};
  const TestFolder folder;
  const std::string path = WriteGguf(folder, "qwen.gguf", "qwen2vl", language);
  const std::string more = WriteGguf(folder, "mmproj.gguf", "clip", tower);
  const std::string class_name = "Qwen2_5_VLForConditionalGeneration";
  absl::StatusOr<WeightFolder> weights = OpenEncoder(path, class_name, base::Json(), more);
  ASSERT_TRUE(weights.ok()) << weights.status();
  EXPECT_THAT(weights->files(), testing::ElementsAre("qwen.gguf", "mmproj.gguf"));
  ExpectWeights(*std::move(weights), model);
  // One tensor in both files has two values.
  const absl::Status twice = OpenEncoder(path, class_name, base::Json(), path).status();
  EXPECT_THAT(std::string(twice.message()), HasSubstr("is both in qwen.gguf"));
  // The tower alone is no text encoder.
  const absl::Status alone = OpenEncoder(more, class_name, base::Json()).status();
  EXPECT_THAT(std::string(alone.message()), HasSubstr("vision tower"));
}

}  // namespace
}  // namespace tessera::models
