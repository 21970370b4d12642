// Compares derived configurations with those of the golden pipelines, from the shapes of their weights.
#include "models/weights/config_from_shapes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "control/model/component_role.h"
#include "models/weights/model_folder.h"

namespace tessera::models {
namespace {

using ::testing::HasSubstr;

// Numbers that no shape shows, and names that have no effect. What a field of these has in a golden pipeline is not
// what is published.
const std::set<std::string>& FieldsWithoutShape() {
  static const auto* fields = new std::set<std::string>{"_class_name",
                                                        "_diffusers_version",
                                                        "architectures",
                                                        "axes_lens",
                                                        "batch_norm_eps",
                                                        "bos_token_id",
                                                        "classifier_dropout",
                                                        "decoder_start_token_id",
                                                        "dropout_rate",
                                                        "dtype",
                                                        "eos_token_id",
                                                        "fullatt_block_indexes",
                                                        "hidden_act",
                                                        "image_token_id",
                                                        "image_token_index",
                                                        "initializer_factor",
                                                        "initializer_range",
                                                        "is_decoder",
                                                        "is_encoder_decoder",
                                                        "is_gated_act",
                                                        "latents_mean",
                                                        "latents_std",
                                                        "layer_types",
                                                        "max_position_embeddings",
                                                        "max_window_layers",
                                                        "attention_dropout",
                                                        "multimodal_projector_bias",
                                                        "norm_eps",
                                                        "num_decoder_layers",
                                                        "num_heads_of_vision",
                                                        "pad_token_id",
                                                        "projector_hidden_act",
                                                        "rope_parameters",
                                                        "rope_scaling",
                                                        "rope_theta",
                                                        "sample_size",
                                                        "scale_decoder_outputs",
                                                        "sliding_window",
                                                        "spatial_merge_size",
                                                        "torch_dtype",
                                                        "transformers_version",
                                                        "use_cache",
                                                        "use_sliding_window",
                                                        "video_token_id",
                                                        "vision_end_token_id",
                                                        "vision_feature_layer",
                                                        "vision_start_token_id",
                                                        "tokens_per_second",
                                                        "model_type",
                                                        "tie_word_embeddings",
                                                        "generation_config"};
  return *fields;
}

std::string Text(const base::Json& value) {
  if (!value.is_array()) return value.Describe();
  std::vector<std::string> items;
  for (const base::Json& item : value.items()) items.push_back(Text(item));
  std::string text = "[";
  for (const std::string& item : items) absl::StrAppend(&text, item, " ");
  return text + "]";
}

// Expects that every field of `published` that a shape can show has the same value in `derived`.
void ExpectSame(const base::Json& derived, const base::Json& published, const std::set<std::string>& unshown,
                const std::string& what) {
  size_t compared = 0;
  for (const base::JsonMember& member : published.members()) {
    if (FieldsWithoutShape().contains(member.key) || unshown.contains(member.key)) continue;
    const base::Json* found = derived.Find(member.key);
    ASSERT_NE(found, nullptr) << what << " lacks " << member.key;
    ++compared;
    if (member.value.is_object()) {
      ExpectSame(*found, member.value, unshown, absl::StrCat(what, ": ", member.key));
    } else if (member.value.AsNumber() && found->AsNumber()) {
      EXPECT_DOUBLE_EQ(*found->AsNumber(), *member.value.AsNumber()) << what << ": " << member.key;
    } else {
      EXPECT_EQ(Text(*found), Text(member.value)) << what << ": " << member.key;
    }
  }
  EXPECT_GE(compared, 1u) << what;
}

TensorShapes ShapesOf(const ModelFolder& folder, const std::string& component) {
  TensorShapes shapes;
  const absl::StatusOr<WeightFolder> weights = folder.Weights(component);
  EXPECT_TRUE(weights.ok()) << weights.status();
  if (!weights.ok()) return shapes;
  for (const auto& [name, location] : weights->tensors()) shapes[name] = location.tensor.shape;
  return shapes;
}

base::Json Derived(const std::string& class_name, const TensorShapes& shapes, NameForm form,
                   const std::string& pipeline, const std::string& component) {
  const absl::StatusOr<std::string> text = DeriveConfig(class_name, shapes, form, pipeline, component);
  EXPECT_TRUE(text.ok()) << text.status();
  return *base::ParseJson(text.value_or("{}"), "derived");
}

struct Pipeline {
  std::string path;
  // Of this pipeline: fields whose values are not the published ones and that no shape shows.
  std::set<std::string> unshown = {};
};

TEST(ConfigFromShapesTest, TheConfigurationsOfTheGoldenPipelinesFollowFromTheirShapes) {
  // CLIP has no norm of heads, and the text towers of Qwen2.5-VL and Mistral have none either.
  const std::set<std::string> heads = {"num_attention_heads", "num_key_value_heads", "head_dim", "num_heads"};
  const Pipeline kPipelines[] = {
      {"tests/golden/pipelines/flux_dev", heads},
      {"tests/golden/pipelines/flux_schnell", heads},
      {"tests/golden/pipelines/sd3", {"num_attention_heads", "attention_head_dim"}},
      {"tests/golden/pipelines/sd35", heads},
      {"tests/golden-newer/pipelines/flux2_klein"},
      {"tests/golden-newer/pipelines/flux2_klein_base"},
      {"tests/golden-newer/pipelines/z_image_turbo"},
      {"tests/golden-newer/pipelines/z_image_base", {"axes_dims"}},
      {"tests/golden-newer/pipelines/qwen_image", heads},
      {"tests/golden-edit/pipelines/flux2_dev",
       {"vision_config", "num_attention_heads", "num_key_value_heads", "head_dim"}},
  };
  for (const Pipeline& pipeline : kPipelines) {
    const absl::StatusOr<ModelFolder> folder = ModelFolder::Open(pipeline.path);
    ASSERT_TRUE(folder.ok()) << folder.status();
    size_t components = 0;
    for (const auto& [component, stated] : folder->components()) {
      if (stated.role == control::ComponentRole::kOther) continue;
      ++components;
      TensorShapes shapes = ShapesOf(*folder, component);
      if (stated.class_name.starts_with("CLIP")) {
        // transformers 5 saves the names without the prefix that published files have.
        TensorShapes prefixed;
        for (const auto& [name, shape] : shapes) {
          prefixed[name.starts_with("text_") ? name : "text_model." + name] = shape;
        }
        shapes = prefixed;
      }
      const base::Json derived =
          Derived(stated.class_name, shapes, NameForm::kDiffusers, folder->class_name(), component);
      ExpectSame(derived, folder->Config(component)->json(), pipeline.unshown,
                 absl::StrCat(pipeline.path, "/", component));
    }
    EXPECT_GE(components, 3u) << pipeline.path;
  }
}

TensorShapes FileShapes(const std::string& path) {
  const absl::StatusOr<FileKind> kind = ReadFileKind(path);
  EXPECT_TRUE(kind.ok()) << kind.status();
  const absl::StatusOr<TensorShapes> shapes = ReadShapes(path, kind->parts.at(0));
  EXPECT_TRUE(shapes.ok()) << shapes.status();
  return shapes.value_or(TensorShapes());
}

TEST(ConfigFromShapesTest, AFileUnderItsAuthorsNamesGivesTheSameFields) {
  const base::Json flux =
      Derived("FluxTransformer2DModel", FileShapes("tests/golden-files/refused/flux_tiny/unknown_tensor.safetensors"),
              NameForm::kOriginal, "FluxPipeline", "transformer");
  EXPECT_EQ(ConfigInt(flux, "num_layers"), 1);
  EXPECT_EQ(ConfigInt(flux, "num_single_layers"), 1);
  EXPECT_EQ(ConfigInt(flux, "attention_head_dim") * ConfigInt(flux, "num_attention_heads"), 16);
  EXPECT_EQ(ConfigInt(flux, "in_channels"), 64);
  EXPECT_FALSE(ConfigBool(flux, "guidance_embeds"));
  const base::Json sd3 =
      Derived("SD3Transformer2DModel", FileShapes("tests/golden-files/refused/sd3_tiny/extra_block.safetensors"),
              NameForm::kOriginal, "StableDiffusion3Pipeline", "transformer");
  EXPECT_EQ(ConfigInt(sd3, "num_layers"), 2) << "a block with a gap before it does not count";
}

TEST(ConfigFromShapesTest, PublishedNumbersAreThoseOfThePublishedSizes) {
  // The shapes of FLUX.1 dev that its configuration depends on.
  const TensorShapes shapes = {
      {"img_in.weight", {3072, 64}},
      {"txt_in.weight", {3072, 4096}},
      {"vector_in.in_layer.weight", {3072, 768}},
      {"guidance_in.in_layer.weight", {3072, 256}},
      {"double_blocks.0.img_attn.norm.query_norm.scale", {128}},
      {"double_blocks.1.img_attn.norm.query_norm.scale", {128}},
      {"single_blocks.0.linear1.weight", {21504, 3072}},
      {"final_layer.linear.weight", {64, 3072}},
  };
  const base::Json flux = Derived("FluxTransformer2DModel", shapes, NameForm::kOriginal, "FluxPipeline", "transformer");
  EXPECT_EQ(ConfigInt(flux, "num_attention_heads"), 24);
  EXPECT_EQ(Text(*flux.Find("axes_dims_rope")), Text(*base::ParseJson("[16, 56, 56]", "axes")));
  EXPECT_TRUE(ConfigBool(flux, "guidance_embeds"));
  EXPECT_EQ(ConfigInt(flux, "num_layers"), 2);
}

TEST(ConfigFromShapesTest, TheNumberOfLayersOfMistralIsItsOwn) {
  for (const int layers : {30, 40}) {
    TensorShapes shapes = {{"token_embd.weight", {131072, 5120}}};
    for (int layer = 0; layer < layers; ++layer) {
      shapes[absl::StrCat("blk.", layer, ".attn_q.weight")] = {4096, 5120};
      shapes[absl::StrCat("blk.", layer, ".attn_k.weight")] = {1024, 5120};
      shapes[absl::StrCat("blk.", layer, ".ffn_gate.weight")] = {32768, 5120};
    }
    const base::Json config =
        Derived("Mistral3ForConditionalGeneration", shapes, NameForm::kLlamaCpp, "Flux2Pipeline", "text_encoder");
    const base::Json& text = *config.Find("text_config");
    EXPECT_EQ(ConfigInt(text, "num_hidden_layers"), layers);
    EXPECT_EQ(ConfigInt(text, "num_attention_heads"), 32);
    EXPECT_EQ(ConfigInt(text, "num_key_value_heads"), 8);
  }
}

TEST(ConfigFromShapesTest, ATensorWithoutWhichNothingFollowsIsNamedAsTheFileNamesIt) {
  const absl::Status status =
      DeriveConfig("FluxTransformer2DModel", {{"double_blocks.0.img_attn.qkv.weight", {48, 16}}}, NameForm::kOriginal,
                   "FluxPipeline", "transformer")
          .status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("\"img_in.weight\""));
}

}  // namespace
}  // namespace tessera::models
