// Tests the key maps against tests/golden-files/keymaps, and on names that no file should have.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/files/file.h"
#include "models/keymaps/key_map.h"

namespace tessera::models {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

KeyMap MapOf(const std::string& class_name, const std::string& config, NameForm form = NameForm::kOriginal) {
  const absl::StatusOr<base::Json> json = base::ParseJson(config, "config");
  EXPECT_TRUE(json.ok()) << json.status();
  const absl::StatusOr<std::optional<KeyMap>> map = KeyMapOf(class_name, *json, form);
  EXPECT_TRUE(map.ok()) << map.status();
  EXPECT_TRUE(map.ok() && map->has_value()) << class_name;
  return map->value_or(KeyMap());
}

struct Row {
  std::string file, operation;
  std::vector<std::string> parameters;
};

std::vector<Row> ReadRows(const std::string& name) {
  const std::string path = absl::StrCat("tests/golden-files/keymaps/", name, ".json");
  const absl::StatusOr<std::string> text = base::ReadWholeFile(path, path, size_t{1} << 20);
  EXPECT_TRUE(text.ok()) << text.status();
  const absl::StatusOr<base::Json> json = base::ParseJson(text.value_or("{}"), path);
  std::vector<Row> rows;
  if (!json.ok() || json->Find("rows") == nullptr) return rows;
  for (const base::Json& row : json->Find("rows")->items()) {
    Row read{.file = *row.items()[0].AsString(), .operation = *row.items()[1].AsString(), .parameters = {}};
    for (const base::Json& parameter : row.items().subspan(2)) read.parameters.push_back(*parameter.AsString());
    rows.push_back(std::move(read));
  }
  return rows;
}

KeyOperation OperationOf(const std::string& name) {
  if (name == "concat") return KeyOperation::kConcat;
  if (name == "swap") return KeyOperation::kSwap;
  return name == "conv" ? KeyOperation::kConv : KeyOperation::kSame;
}

struct Table {
  const char *name, *class_name, *config;
  NameForm form = NameForm::kOriginal;
};

constexpr const char* kFourLevels = R"({"block_out_channels": [1, 2, 3, 4]})";

const Table kTables[] = {
    {"flux_small.transformer", "FluxTransformer2DModel", "{}"},
    {"sd35_small.transformer", "SD3Transformer2DModel", R"({"num_layers": 2})"},
    {"klein_small.transformer", "Flux2Transformer2DModel", "{}"},
    {"z_image_turbo.transformer", "ZImageTransformer2DModel", "{}"},
    {"qwen_small.transformer", "QwenImageTransformer2DModel", "{}"},
    {"flux_dev.vae", "AutoencoderKL", kFourLevels},
    {"flux2_klein.vae", "AutoencoderKLFlux2", kFourLevels},
    {"qwen_image.vae", "AutoencoderKLQwenImage", R"({"dim_mult": [1, 2, 4, 4], "num_res_blocks": 1})"},
    {"flux_dev.text_encoder_2.gguf", "T5EncoderModel", "{}", NameForm::kLlamaCpp},
    {"z_image_turbo.text_encoder.gguf", "Qwen3Model", "{}", NameForm::kLlamaCpp},
};

TEST(KeyMapTest, EveryRowOfTheTablesIsMappedAndFoundAgain) {
  for (const Table& table : kTables) {
    const KeyMap map = MapOf(table.class_name, table.config, table.form);
    const std::vector<Row> rows = ReadRows(table.name);
    EXPECT_GT(rows.size(), 20u) << table.name;
    for (const Row& row : rows) {
      const std::optional<MappedKey> key = map.Map(row.file);
      ASSERT_TRUE(key.has_value()) << table.name << ": " << row.file;
      EXPECT_EQ(key->operation, OperationOf(row.operation)) << row.file;
      EXPECT_EQ(key->parameters, row.parameters) << row.file;
      for (const std::string& parameter : row.parameters) EXPECT_EQ(map.NameOf(parameter), row.file) << parameter;
    }
  }
}

TEST(KeyMapTest, NamesThatNoModelHasAreUnknown) {
  const KeyMap map = MapOf("FluxTransformer2DModel", "{}");
  ASSERT_TRUE(map.Map("double_blocks.9999.img_attn.qkv.weight").has_value());
  for (const char* name : {"", ".", "weight", ".weight", "img_in", "img_in.", "img_in.scale", "xx.img_in.weight",
                           "double_blocks.00.img_attn.qkv.weight", "double_blocks.01.img_attn.qkv.weight",
                           "double_blocks.-1.img_attn.qkv.weight", "double_blocks..img_attn.qkv.weight",
                           "double_blocks.10000.img_attn.qkv.weight", "double_blocks.{}.img_attn.qkv.weight",
                           "double_blocks.0.img_attn.qkv", "double_blocks.0.img_attn.qkv.weight.weight",
                           "transformer_blocks.0.attn.to_q.weight"}) {
    EXPECT_FALSE(map.Map(name).has_value()) << name;
  }
  EXPECT_FALSE(map.Map(std::string("img_in.weight\0", 14)).has_value());
}

TEST(KeyMapTest, TheLevelsOfADecoderAreCountedFromItsOtherEnd) {
  const KeyMap two = MapOf("AutoencoderKL", R"({"block_out_channels": [8, 16]})");
  EXPECT_THAT(two.Map("decoder.up.0.block.1.conv1.bias")->parameters,
              ElementsAre("decoder.up_blocks.1.resnets.1.conv1.bias"));
  EXPECT_FALSE(two.Map("decoder.up.2.block.1.conv1.bias").has_value()) << "there are two levels";
  // Residuals and upsamplers are numbered together.
  const KeyMap wan = MapOf("AutoencoderKLQwenImage", R"({"dim_mult": [1, 2, 4], "num_res_blocks": 2})");
  EXPECT_THAT(wan.Map("decoder.upsamples.3.resample.1.weight")->parameters,
              ElementsAre("decoder.up_blocks.0.upsamplers.0.resample.1.weight"));
  EXPECT_THAT(wan.Map("decoder.upsamples.9.residual.3.gamma")->parameters,
              ElementsAre("decoder.up_blocks.2.resnets.1.norm2.gamma"));
  EXPECT_FALSE(wan.Map("decoder.upsamples.11.resample.1.weight").has_value()) << "the last level has no upsampler";
}

TEST(KeyMapTest, OnlyTheLastContextOfStableDiffusion3IsSwapped) {
  const KeyMap map = MapOf("SD3Transformer2DModel", R"({"num_layers": 24})");
  EXPECT_EQ(map.Map("joint_blocks.23.context_block.adaLN_modulation.1.weight")->operation, KeyOperation::kSwap);
  EXPECT_EQ(map.Map("joint_blocks.22.context_block.adaLN_modulation.1.weight")->operation, KeyOperation::kSame);
  EXPECT_EQ(map.Map("joint_blocks.23.x_block.adaLN_modulation.1.weight")->operation, KeyOperation::kSame);
}

TEST(KeyMapTest, QueriesAndKeysOfMistralAreReorderedByTheirOwnNumberOfHeads) {
  const KeyMap map =
      MapOf("Mistral3ForConditionalGeneration",
            R"({"text_config": {"num_attention_heads": 32, "num_key_value_heads": 8}})", NameForm::kLlamaCpp);
  EXPECT_EQ(*map.Map("blk.39.attn_q.weight"),
            (MappedKey{KeyOperation::kRotaryPairs, {"model.layers.39.self_attn.q_proj.weight"}, 32}));
  EXPECT_EQ(*map.Map("blk.39.attn_k.weight"),
            (MappedKey{KeyOperation::kRotaryPairs, {"model.layers.39.self_attn.k_proj.weight"}, 8}));
  EXPECT_EQ(map.Map("blk.39.attn_v.weight")->operation, KeyOperation::kSame);
  EXPECT_TRUE(map.Ignores("rope_freqs.weight"));
}

TEST(KeyMapTest, TheVisionTowerOfQwenIsStoredInParts) {
  const KeyMap map = MapOf("Qwen2_5_VLForConditionalGeneration", "{}", NameForm::kLlamaCpp);
  EXPECT_EQ(*map.Map("v.blk.3.attn_k.bias"),
            (MappedKey{KeyOperation::kPart, {"visual.blocks.3.attn.qkv.bias"}, 0, 1, 3}));
  EXPECT_EQ(*map.Map("v.patch_embd.weight.1"),
            (MappedKey{KeyOperation::kFrame, {"visual.patch_embed.proj.weight"}, 0, 1, 2}));
  EXPECT_EQ(map.Map("blk.3.attn_q.bias")->parameters.front(), "model.layers.3.self_attn.q_proj.bias");
}

TEST(KeyMapTest, TensorsWithoutEffectAreIgnored) {
  EXPECT_TRUE(MapOf("ZImageTransformer2DModel", "{}").Ignores("norm_final.weight"));
  EXPECT_FALSE(MapOf("ZImageTransformer2DModel", "{}").Map("norm_final.weight").has_value());
  EXPECT_TRUE(MapOf("CLIPTextModel", "{}").Ignores("text_projection.weight"));
  EXPECT_FALSE(MapOf("CLIPTextModelWithProjection", "{}").Ignores("text_projection.weight"));
}

TEST(KeyMapTest, AConfigurationWithoutTheNumberIsRefusedByItsField) {
  for (const char* config : {"{}", R"({"num_layers": 0})", R"({"num_layers": "x"})", R"({"num_layers": 10000})"}) {
    const auto map = KeyMapOf("SD3Transformer2DModel", *base::ParseJson(config, "config"), NameForm::kOriginal);
    EXPECT_EQ(map.status().code(), absl::StatusCode::kInvalidArgument) << config;
    EXPECT_THAT(std::string(map.status().message()), HasSubstr("\"num_layers\"")) << config;
  }
  EXPECT_FALSE(KeyMapOf("AutoencoderKL", *base::ParseJson("{}", "config"), NameForm::kOriginal).ok());
}

TEST(KeyMapTest, AClassWithoutSuchFilesHasNoMap) {
  const base::Json config;
  EXPECT_FALSE(KeyMapOf("PixArtTransformer2DModel", config, NameForm::kOriginal)->has_value());
  EXPECT_FALSE(KeyMapOf("FluxTransformer2DModel", config, NameForm::kLlamaCpp)->has_value());
  EXPECT_EQ(KeyMapOf("FluxTransformer2DModel", config, NameForm::kDiffusers)->value().Map("a.b")->parameters.front(),
            "a.b");
}

}  // namespace
}  // namespace tessera::models
