#include "models/weights/published_pipelines.h"

#include <array>
#include <filesystem>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/paths/path_text.h"
#include "models/weights/config_from_shapes.h"

namespace tessera::models {
namespace {

namespace fs = std::filesystem;
using Component = PublishedComponent;

constexpr Component kScheduler{"scheduler", "diffusers", "FlowMatchEulerDiscreteScheduler"};

// Source: model_index.json of each repository.
constexpr Component kFluxParts[] = {kScheduler,
                                    {"text_encoder", "transformers", "CLIPTextModel"},
                                    {"text_encoder_2", "transformers", "T5EncoderModel"},
                                    {"tokenizer", "transformers", "CLIPTokenizer"},
                                    {"tokenizer_2", "transformers", "T5TokenizerFast"},
                                    {"transformer", "diffusers", "FluxTransformer2DModel"},
                                    {"vae", "diffusers", "AutoencoderKL"}};
constexpr Component kSd3Parts[] = {kScheduler,
                                   {"text_encoder", "transformers", "CLIPTextModelWithProjection"},
                                   {"text_encoder_2", "transformers", "CLIPTextModelWithProjection"},
                                   {"text_encoder_3", "transformers", "T5EncoderModel"},
                                   {"tokenizer", "transformers", "CLIPTokenizer"},
                                   {"tokenizer_2", "transformers", "CLIPTokenizer"},
                                   {"tokenizer_3", "transformers", "T5TokenizerFast"},
                                   {"transformer", "diffusers", "SD3Transformer2DModel"},
                                   {"vae", "diffusers", "AutoencoderKL"}};
constexpr Component kFlux2Parts[] = {kScheduler,
                                     {"text_encoder", "transformers", "Mistral3ForConditionalGeneration"},
                                     {"tokenizer", "transformers", "PixtralProcessor"},
                                     {"transformer", "diffusers", "Flux2Transformer2DModel"},
                                     {"vae", "diffusers", "AutoencoderKLFlux2"}};
constexpr Component kKleinParts[] = {kScheduler,
                                     {"text_encoder", "transformers", "Qwen3ForCausalLM"},
                                     {"tokenizer", "transformers", "Qwen2Tokenizer"},
                                     {"transformer", "diffusers", "Flux2Transformer2DModel"},
                                     {"vae", "diffusers", "AutoencoderKLFlux2"}};
constexpr Component kZImageParts[] = {kScheduler,
                                      {"text_encoder", "transformers", "Qwen3ForCausalLM"},
                                      {"tokenizer", "transformers", "Qwen2Tokenizer"},
                                      {"transformer", "diffusers", "ZImageTransformer2DModel"},
                                      {"vae", "diffusers", "AutoencoderKL"}};
constexpr Component kQwenImageParts[] = {kScheduler,
                                         {"text_encoder", "transformers", "Qwen2_5_VLForConditionalGeneration"},
                                         {"tokenizer", "transformers", "Qwen2Tokenizer"},
                                         {"transformer", "diffusers", "QwenImageTransformer2DModel"},
                                         {"vae", "diffusers", "AutoencoderKLQwenImage"}};
constexpr Component kQwenEditParts[] = {kScheduler,
                                        {"processor", "transformers", "Qwen2VLProcessor"},
                                        {"text_encoder", "transformers", "Qwen2_5_VLForConditionalGeneration"},
                                        {"tokenizer", "transformers", "Qwen2Tokenizer"},
                                        {"transformer", "diffusers", "QwenImageTransformer2DModel"},
                                        {"vae", "diffusers", "AutoencoderKLQwenImage"}};

// Source: scheduler/scheduler_config.json of each repository.
constexpr std::string_view kDynamicShift =
    R"({"_class_name": "FlowMatchEulerDiscreteScheduler", "base_image_seq_len": 256, "base_shift": 0.5,)"
    R"( "max_image_seq_len": 4096, "max_shift": 1.15, "num_train_timesteps": 1000, "shift": 3.0,)"
    R"( "use_dynamic_shifting": true})";
constexpr std::string_view kShiftOf1 =
    R"({"_class_name": "FlowMatchEulerDiscreteScheduler", "base_image_seq_len": 256, "base_shift": 0.5,)"
    R"( "max_image_seq_len": 4096, "max_shift": 1.15, "num_train_timesteps": 1000, "shift": 1.0,)"
    R"( "use_dynamic_shifting": false})";
constexpr std::string_view kShiftOf3 =
    R"({"_class_name": "FlowMatchEulerDiscreteScheduler", "num_train_timesteps": 1000, "shift": 3.0,)"
    R"( "use_dynamic_shifting": false})";
constexpr std::string_view kShiftOf6 =
    R"({"_class_name": "FlowMatchEulerDiscreteScheduler", "num_train_timesteps": 1000, "shift": 6.0,)"
    R"( "use_dynamic_shifting": false})";
constexpr std::string_view kQwenShift =
    R"({"_class_name": "FlowMatchEulerDiscreteScheduler", "base_image_seq_len": 256, "base_shift": 0.5,)"
    R"( "max_image_seq_len": 8192, "max_shift": 0.9, "num_train_timesteps": 1000, "shift": 1.0,)"
    R"( "shift_terminal": 0.02, "time_shift_type": "exponential", "use_dynamic_shifting": true})";

constexpr PublishedPipeline kFluxDev{"FluxPipeline", kFluxParts, kDynamicShift, "", "black-forest-labs/FLUX.1-dev"};
constexpr PublishedPipeline kFluxSchnell{"FluxPipeline", kFluxParts, kShiftOf1, "", "black-forest-labs/FLUX.1-schnell"};
constexpr PublishedPipeline kFluxFill{"FluxFillPipeline", kFluxParts, kDynamicShift, "",
                                      "black-forest-labs/FLUX.1-Fill-dev"};
constexpr PublishedPipeline kFluxKontext{"FluxKontextPipeline", kFluxParts, kDynamicShift, "",
                                         "black-forest-labs/FLUX.1-Kontext-dev"};
constexpr PublishedPipeline kSd3Medium{"StableDiffusion3Pipeline", kSd3Parts, kShiftOf3, "",
                                       "stabilityai/stable-diffusion-3-medium-diffusers"};
constexpr PublishedPipeline kSd35Medium{"StableDiffusion3Pipeline", kSd3Parts, kShiftOf3, "",
                                        "stabilityai/stable-diffusion-3.5-medium"};
constexpr PublishedPipeline kSd35Large{"StableDiffusion3Pipeline", kSd3Parts, kShiftOf3, "",
                                       "stabilityai/stable-diffusion-3.5-large"};
constexpr PublishedPipeline kSd35Turbo{"StableDiffusion3Pipeline", kSd3Parts, kShiftOf3, "",
                                       "stabilityai/stable-diffusion-3.5-large-turbo"};
constexpr PublishedPipeline kFlux2Dev{"Flux2Pipeline", kFlux2Parts, kDynamicShift, "", "black-forest-labs/FLUX.2-dev"};
constexpr PublishedPipeline kKlein{"Flux2KleinPipeline", kKleinParts, kDynamicShift, R"(, "is_distilled": true)",
                                   "black-forest-labs/FLUX.2-klein-4B"};
constexpr PublishedPipeline kKleinBase{"Flux2KleinPipeline", kKleinParts, kDynamicShift, R"(, "is_distilled": false)",
                                       "black-forest-labs/FLUX.2-klein-base-4B"};
constexpr PublishedPipeline kKlein9B{"Flux2KleinPipeline", kKleinParts, kDynamicShift, R"(, "is_distilled": true)",
                                     "black-forest-labs/FLUX.2-klein-9B"};
constexpr PublishedPipeline kKleinBase9B{"Flux2KleinPipeline", kKleinParts, kDynamicShift, R"(, "is_distilled": false)",
                                         "black-forest-labs/FLUX.2-klein-base-9B"};
constexpr PublishedPipeline kKleinKv{"Flux2KleinKVPipeline", kKleinParts, kDynamicShift, R"(, "is_distilled": true)",
                                     "black-forest-labs/FLUX.2-klein-9b-kv"};
constexpr PublishedPipeline kZImageTurbo{"ZImagePipeline", kZImageParts, kShiftOf3, "", "Tongyi-MAI/Z-Image-Turbo"};
constexpr PublishedPipeline kZImage{"ZImagePipeline", kZImageParts, kShiftOf6, "", "Tongyi-MAI/Z-Image"};
constexpr PublishedPipeline kQwenImage{"QwenImagePipeline", kQwenImageParts, kQwenShift, "", "Qwen/Qwen-Image"};
constexpr PublishedPipeline kQwenEdit{"QwenImageEditPipeline", kQwenEditParts, kQwenShift, "", "Qwen/Qwen-Image-Edit"};
constexpr PublishedPipeline kQwenEditPlus{"QwenImageEditPlusPipeline", kQwenEditParts, kQwenShift, "",
                                          "Qwen/Qwen-Image-Edit-2509"};
constexpr PublishedPipeline kQwenEdit2511{"QwenImageEditPlusPipeline", kQwenEditParts, kQwenShift, "",
                                          "Qwen/Qwen-Image-Edit-2511"};

constexpr int64_t kTextWidthOf4B = 7680;  // joint_attention_dim of FLUX.2 klein 4B

constexpr const PublishedPipeline* kAll[] = {&kFluxDev,    &kFluxSchnell, &kFluxKontext,  &kFluxFill,     &kSd35Large,
                                             &kSd35Medium, &kSd35Turbo,   &kSd3Medium,    &kFlux2Dev,     &kKlein,
                                             &kKleinBase,  &kKlein9B,     &kKleinBase9B,  &kKleinKv,      &kZImageTurbo,
                                             &kZImage,     &kQwenImage,   &kQwenEdit2511, &kQwenEditPlus, &kQwenEdit};

// Returns the error for a file whose weights and name leave two variants: a name with the word `word` states it.
absl::Status VariantError(const std::string& path, std::string_view first, std::string_view second,
                          const std::string& word) {
  const fs::path file(path);
  const std::string renamed = (file.parent_path() / absl::StrCat(word, "_", file.filename().string())).string();
  return absl::InvalidArgumentError(absl::StrCat(
      base::QuotePath(path), " holds weights of ", std::string(first), " or ", std::string(second),
      ", which differ in nothing but their values; give the file a name that tells which, for example with: mv ",
      base::ShellWord(path), " ", base::ShellWord(renamed)));
}

}  // namespace

absl::StatusOr<PublishedPipeline> PipelineOf(const std::string& class_name, const base::Json& config,
                                             const std::string& path) {
  const std::string name = absl::AsciiStrToLower(fs::path(path).filename().string());
  const auto named = [&](std::string_view word) { return name.find(word) != std::string::npos; };
  if (class_name == "FluxTransformer2DModel") {
    if (const base::Json* out = config.Find("out_channels"); out != nullptr && !out->is_null()) return kFluxFill;
    if (named("kontext")) return kFluxKontext;
    return ConfigBool(config, "guidance_embeds") ? kFluxDev : kFluxSchnell;
  }
  if (class_name == "SD3Transformer2DModel") {
    const base::Json* dual = config.Find("dual_attention_layers");
    if (dual != nullptr && !dual->items().empty()) return kSd35Medium;
    const base::Json* norm = config.Find("qk_norm");
    if (norm == nullptr || norm->is_null()) return kSd3Medium;
    return named("turbo") ? kSd35Turbo : kSd35Large;
  }
  if (class_name == "Flux2Transformer2DModel") {
    if (ConfigBool(config, "guidance_embeds")) return kFlux2Dev;
    const bool is_large = ConfigInt(config, "joint_attention_dim") > kTextWidthOf4B;
    if (named("base")) return is_large ? kKleinBase9B : kKleinBase;
    if (named("-kv") || named("_kv")) return kKleinKv;
    if (named("klein") || named("distilled")) return is_large ? kKlein9B : kKlein;
    return VariantError(path, "FLUX.2 klein", "its base model", "klein");
  }
  if (class_name == "ZImageTransformer2DModel") {
    if (named("turbo")) return kZImageTurbo;
    for (const char* word : {"base", "z_image", "z-image", "zimage"}) {
      if (named(word)) return kZImage;
    }
    return VariantError(path, "Z-Image Turbo", "Z-Image", "turbo");
  }
  if (class_name == "QwenImageTransformer2DModel") {
    if (ConfigBool(config, "zero_cond_t") || named("2511")) return kQwenEdit2511;
    if (named("2509") || named("edit_plus") || named("edit-plus")) return kQwenEditPlus;
    return named("edit") ? kQwenEdit : kQwenImage;
  }
  return absl::InvalidArgumentError(absl::StrCat("no pipeline has a transformer of class ", class_name));
}

std::vector<std::string> SharedBases(const PublishedPipeline& pipeline) {
  std::vector<std::string> bases = {std::string(pipeline.base)};
  for (const PublishedPipeline* other : kAll) {
    if (other->components.data() == pipeline.components.data() && other->base != pipeline.base) {
      bases.emplace_back(other->base);
    }
  }
  return bases;
}

}  // namespace tessera::models
