// Tests what files are recognised as: those of tests/golden-files, and small ones written here.
#include "models/weights/file_kind.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/paths/path_text.h"
#include "tests/support/gguf_bytes.h"
#include "tests/support/safetensors_bytes.h"
#include "tests/support/test_folder.h"

namespace tessera::models {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kRefused = "tests/golden-files/refused/";

// Returns the error of a file that is used as the component of that class.
std::string ErrorAs(const std::string& path, const std::string& component, const std::string& class_name) {
  const absl::StatusOr<FileKind> kind = ReadFileKind(path);
  if (!kind.ok()) return std::string(kind.status().message());
  const absl::StatusOr<FilePart> part = PartFor(*kind, path, component, class_name);
  EXPECT_FALSE(part.ok()) << path;
  return std::string(part.status().message());
}

// A file with a tensor of one byte for each name.
std::string WriteNames(const TestFolder& folder, const std::string& file, const std::vector<std::string>& names,
                       const std::string& type = "U8") {
  std::vector<std::string> tensors;
  for (size_t i = 0; i < names.size(); ++i) {
    tensors.push_back(absl::StrCat("\"", names[i], R"(":{"dtype":")", type, R"(","shape":[1],"data_offsets":[)", i, ",",
                                   i + 1, "]}"));
  }
  return folder.Write(file, SafetensorsBytes("{" + absl::StrJoin(tensors, ",") + "}", std::string(names.size(), '\0')));
}

FileKind KindOfNames(const std::vector<std::string>& names) {
  const TestFolder folder;
  const absl::StatusOr<FileKind> kind = ReadFileKind(WriteNames(folder, "a.safetensors", names));
  EXPECT_TRUE(kind.ok()) << kind.status();
  return kind.value_or(FileKind{});
}

struct Refused {
  const char *file, *named;
};

TEST(FileKindTest, FilesToRefuseAreRefusedByWhatTheyAreWithACommand) {
  const Refused kCases[] = {
      {"truncated.safetensors", "truncated.safetensors"},
      {"truncated_header.safetensors", "truncated_header.safetensors"},
      {"empty.safetensors", "empty.safetensors"},
      {"lfs_pointer.safetensors", "lfs_pointer.safetensors"},
      {"html.safetensors", "html.safetensors"},
      {"two_prefixes.safetensors", "double_blocks.0.img_attn.qkv.weight"},
      {"duplicate_key.safetensors", "double_blocks.0.img_attn.qkv.bias"},
      {"two_layouts.safetensors", "transformer_blocks.0.attn.to_q.weight"},
      {"pickle.ckpt", "pickle.ckpt"},
      {"pickle_renamed.safetensors", "pickle_renamed.safetensors"},
      {"pickle_hostile.ckpt", "pickle_hostile.ckpt"},
      {"sd3_file.safetensors", "Stable Diffusion 3"},
      {"sdxl.safetensors", "SDXL"},
      {"lora.safetensors", "LoRA"},
      {"lora_peft.safetensors", "LoRA"},
      {"only_vae.safetensors", "transformer"},
      {"header_too_long.safetensors", "header_too_long.safetensors"},
      {"header_not_json.safetensors", "header_not_json.safetensors"},
      {"offset_outside.safetensors", "double_blocks.0.img_attn.proj.weight"},
      {"overlap.safetensors", "double_blocks.0.img_attn.proj.weight"},
      {"size_disagrees.safetensors", "double_blocks.0.img_attn.proj.weight"},
      {"unknown_dtype.safetensors", "F4_Q9"},
      {"marker_nvfp9.safetensors", "nvfp9"},
      {"marker_int8_rotated.safetensors", "convrot"},
      {"nvfp4.safetensors", "nvfp4"},
      {"svdquant.safetensors", "svdquant"},
      {"gguf_architecture.gguf", "wan"},
      {"gguf_invented.gguf", "quux"},
      {"gguf_llama.gguf", "llama"},
      {"gguf_qwen3.gguf", "qwen3"},
      {"gguf_split.gguf", "split.count"},
  };
  for (const Refused& refused : kCases) {
    const std::string path = absl::StrCat(kRefused, "flux_tiny/", refused.file);
    const std::string error = ErrorAs(path, "transformer", "FluxTransformer2DModel");
    EXPECT_THAT(error, HasSubstr(refused.named)) << refused.file;
    EXPECT_THAT(error, AnyOf(HasSubstr("tessera "), HasSubstr("git lfs pull"), HasSubstr("python3 scripts/"),
                             HasSubstr("hf download"), HasSubstr("llama-gguf-split"), HasSubstr("it runs ")))
        << refused.file << ": " << error;
    EXPECT_EQ(error.find('\n'), std::string::npos) << error;
  }
  EXPECT_FALSE(std::filesystem::exists("pickle-was-run"));
}

TEST(FileKindTest, AFileOfAnotherFamilyIsNamedByItsFamily) {
  for (const Refused& refused :
       {Refused{"sd3_tiny/flux_file.safetensors", "FLUX.1"}, Refused{"sd3_tiny/lora.safetensors", "LoRA"},
        Refused{"sd3_tiny/two_prefixes.safetensors", "joint_blocks.0.x_block.attn.qkv.weight"},
        Refused{"sd3_tiny/truncated.safetensors", "truncated.safetensors"}}) {
    EXPECT_THAT(ErrorAs(absl::StrCat(kRefused, refused.file), "transformer", "SD3Transformer2DModel"),
                HasSubstr(refused.named));
  }
}

TEST(FileKindTest, AMethodOfQuantizationThatIsNotReadIsNamed) {
  for (const char* method : {"torchao", "quanto", "gptq", "modelopt", "svdquant", "nonsense"}) {
    const auto config =
        base::ParseJson(absl::StrCat(R"({"quantization_config": {"quant_method": ")", method, "\"}}"), "config");
    EXPECT_THAT(std::string(CheckQuantizationConfig(*config, "transformer").message()), HasSubstr(method));
  }
  const auto read = base::ParseJson(R"({"quantization_config": {"quant_method": "bitsandbytes"}})", "config");
  EXPECT_TRUE(CheckQuantizationConfig(*read, "transformer").ok());
  EXPECT_TRUE(CheckQuantizationConfig(base::Json(), "transformer").ok());
  const auto broken = base::ParseJson(R"({"quantization_config": {}})", "config");
  EXPECT_FALSE(CheckQuantizationConfig(*broken, "transformer").ok());
}

TEST(FileKindTest, TheFamiliesAndFormsOfTransformersAreToldApartByTheirNames) {
  struct Case {
    std::vector<std::string> names;
    const char* class_name;
    NameForm form;
  };
  const Case kCases[] = {
      {{"double_blocks.0.img_attn.qkv.weight"}, "FluxTransformer2DModel", NameForm::kOriginal},
      {{"double_blocks.0.img_attn.qkv.weight", "single_stream_modulation.lin.weight"},
       "Flux2Transformer2DModel",
       NameForm::kOriginal},
      {{"joint_blocks.0.x_block.attn.qkv.weight"}, "SD3Transformer2DModel", NameForm::kOriginal},
      {{"noise_refiner.0.attention.qkv.weight", "cap_pad_token"}, "ZImageTransformer2DModel", NameForm::kOriginal},
      {{"noise_refiner.0.attention.to_q.weight", "all_x_embedder.2-1.weight"},
       "ZImageTransformer2DModel",
       NameForm::kDiffusers},
      {{"transformer_blocks.0.img_mod.1.weight"}, "QwenImageTransformer2DModel", NameForm::kOriginal},
      {{"single_transformer_blocks.0.attn.to_q.weight", "x_embedder.weight"},
       "FluxTransformer2DModel",
       NameForm::kDiffusers},
      {{"transformer_blocks.0.attn.add_q_proj.weight", "pos_embed.proj.weight"},
       "SD3Transformer2DModel",
       NameForm::kDiffusers},
  };
  for (const Case& known : kCases) {
    for (const char* prefix : {"", "model.diffusion_model."}) {
      std::vector<std::string> names;
      for (const std::string& name : known.names) names.push_back(prefix + name);
      const FileKind kind = KindOfNames(names);
      ASSERT_EQ(kind.parts.size(), 1u) << names.front();
      EXPECT_EQ(kind.parts[0].class_name, known.class_name);
      EXPECT_EQ(kind.parts[0].form, known.form) << names.front();
      EXPECT_EQ(kind.parts[0].prefix, prefix);
      EXPECT_TRUE(CheckUsable(kind, "a").ok());
    }
  }
}

TEST(FileKindTest, ACheckpointHoldsPartsWithPrefixes) {
  const FileKind kind = KindOfNames({"model.diffusion_model.joint_blocks.0.x_block.attn.qkv.weight",
                                     "first_stage_model.decoder.mid.block_1.conv1.weight",
                                     "text_encoders.clip_l.transformer.text_model.encoder.layers.0.mlp.fc1.weight",
                                     "text_encoders.clip_g.transformer.text_model.encoder.layers.0.mlp.fc1.weight",
                                     "text_encoders.clip_g.logit_scale",
                                     "text_encoders.t5xxl.transformer.encoder.block.0.layer.1.layer_norm.weight"});
  EXPECT_EQ(kind.parts.size(), 5u);
  EXPECT_TRUE(kind.unknown.empty()) << kind.unknown.front();
  const auto prefix_of = [&](const std::string& component, const std::string& class_name) {
    const absl::StatusOr<FilePart> part = PartFor(kind, "a", component, class_name);
    return part.ok() ? part->prefix : std::string(part.status().message());
  };
  EXPECT_EQ(prefix_of("transformer", "SD3Transformer2DModel"), "model.diffusion_model.");
  EXPECT_EQ(prefix_of("vae", "AutoencoderKL"), "first_stage_model.");
  EXPECT_EQ(prefix_of("text_encoder", "CLIPTextModelWithProjection"), "text_encoders.clip_l.transformer.");
  EXPECT_EQ(prefix_of("text_encoder_2", "CLIPTextModelWithProjection"), "text_encoders.clip_g.transformer.");
  EXPECT_EQ(prefix_of("text_encoder_3", "T5EncoderModel"), "text_encoders.t5xxl.transformer.");
  EXPECT_THAT(prefix_of("text_encoder", "Qwen3ForCausalLM"), HasSubstr("use it with a model of its family"));
}

TEST(FileKindTest, TextEncodersAndAutoencodersAreRecognised) {
  const std::pair<std::vector<std::string>, const char*> kCases[] = {
      {{"model.layers.0.self_attn.q_norm.weight"}, "Qwen3ForCausalLM"},
      {{"model.layers.0.self_attn.q_proj.bias"}, "Qwen2_5_VLForConditionalGeneration"},
      {{"model.layers.0.self_attn.q_proj.weight"}, "Mistral3ForConditionalGeneration"},
      {{"enc.blk.0.attn_q.weight"}, "T5EncoderModel"},
      {{"blk.0.attn_q_norm.weight"}, "Qwen3ForCausalLM"},
      {{"blk.0.attn_q.bias"}, "Qwen2_5_VLForConditionalGeneration"},
      {{"blk.0.attn_q.weight"}, "Mistral3ForConditionalGeneration"},
      {{"decoder.middle.0.residual.0.gamma"}, "AutoencoderKLQwenImage"},
      {{"decoder.mid.block_1.conv1.weight", "bn.running_mean"}, "AutoencoderKLFlux2"},
  };
  for (const auto& [names, class_name] : kCases) {
    const FileKind kind = KindOfNames(names);
    ASSERT_EQ(kind.parts.size(), 1u) << names.front();
    EXPECT_EQ(kind.parts[0].class_name, class_name);
  }
}

TEST(FileKindTest, AClipInGgufIsReadUnderItsOwnNamesAndRefusedUnderThoseOfLlamaCpp) {
  const TestFolder folder;
  const auto kind_of = [&](const std::string& architecture, const std::string& name) {
    GgufBytes gguf;
    if (!architecture.empty()) gguf.Text("general.architecture", architecture);
    const std::string file =
        folder.Write("clip.gguf", gguf.Tensor(name, {8, 4}, /*type=*/0, 0).Bytes(std::string(128, '\0')));
    const absl::StatusOr<FileKind> kind = ReadFileKind(file);
    EXPECT_TRUE(kind.ok()) << kind.status();
    return kind.value_or(FileKind{});
  };
  for (const char* architecture : {"", "clip", "pig"}) {
    for (const char* prefix : {"", "text_encoders.clip_l.transformer."}) {
      const FileKind kind =
          kind_of(architecture, absl::StrCat(prefix, "text_model.encoder.layers.0.self_attn.q_proj.weight"));
      EXPECT_TRUE(CheckUsable(kind, "clip.gguf").ok()) << CheckUsable(kind, "clip.gguf");
      const absl::StatusOr<FilePart> part = PartFor(kind, "clip.gguf", "text_encoder", "CLIPTextModel");
      ASSERT_TRUE(part.ok()) << part.status();
      EXPECT_EQ(part->prefix, prefix);
    }
    const absl::Status refused = CheckUsable(kind_of(architecture, "t.blk.0.attn_q.weight"), "clip.gguf");
    EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()),
                AllOf(HasSubstr("\"clip.gguf\" holds CLIP under the names of llama.cpp"), HasSubstr("hf download ")));
  }
}

TEST(FileKindTest, HowWeightsAreStoredIsNamed) {
  const TestFolder folder;
  const auto stored = [&](const std::vector<std::string>& names, const std::string& type) {
    const absl::StatusOr<FileKind> kind = ReadFileKind(WriteNames(folder, "a.safetensors", names, type));
    return kind.ok() ? kind->quantization : std::string(kind.status().message());
  };
  EXPECT_EQ(stored({"double_blocks.0.x"}, "U8"), "");
  EXPECT_EQ(stored({"double_blocks.0.x"}, "F8_E4M3"), "fp8");
  EXPECT_EQ(stored({"double_blocks.0.x", "double_blocks.0.scale_weight"}, "F8_E4M3"), "fp8 with scales");
  EXPECT_EQ(stored({"double_blocks.0.x", "double_blocks.0.SCB"}, "I8"), "int8 (bitsandbytes)");
  EXPECT_EQ(stored({"a.weight.quant_state.bitsandbytes__nf4"}, "U8"), "nf4 (bitsandbytes)");
  EXPECT_EQ(ReadFileKind(std::string(kRefused) + "flux_tiny/gguf_llama.gguf")->architecture, "llama");
}

TEST(FileKindTest, ACommandFitsIntoAShellWhateverThePathIs) {
  EXPECT_EQ(base::ShellWord("a/b-c.gguf"), "a/b-c.gguf");
  EXPECT_EQ(base::ShellWord("it's $HOME"), "'it'\\''s $HOME'");
  EXPECT_EQ(base::ShellWord("-rf"), "'-rf'");
  EXPECT_EQ(base::ShellWord("a\nb"), "FILE");
  EXPECT_EQ(base::ShellWord(std::string("a\0b", 3)), "FILE");
}

TEST(FileKindTest, AFileWithoutAnythingKnownSaysSo) {
  const FileKind kind = KindOfNames({"strange"});
  EXPECT_THAT(std::string(CheckUsable(kind, "a").message()), AllOf(HasSubstr("\"strange\""), HasSubstr("inspect a")));
  EXPECT_EQ(ReadFileKind("no/such.gguf").status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace tessera::models
