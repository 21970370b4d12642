#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/macros/status_macros.h"
#include "control/pictures/picture_input.h"
#include "models/families/families.h"
#include "models/families/family_description.h"
#include "models/families/guidance.h"
#include "models/families/latent_family.h"
#include "models/families/prompt_request.h"
#include "models/flux2/flux2_transformer.h"
#include "models/loading/load_options.h"
#include "models/precision.h"

namespace tessera::models {
namespace {

constexpr OriginalNames kOriginalNames = OriginalNames::kFlux2;

// The reference pipelines' defaults and bounds.
constexpr int64_t kSteps = 50;
constexpr double kGuidanceScale = 4;
constexpr int64_t kMaxTokens = 512;
// The distilled checkpoints take few steps and no guidance (source: their model cards).
constexpr int64_t kDistilledSteps = 4;
constexpr char kBaseModel[] = "FLUX.2 klein base";
constexpr int64_t kDefaultSide = 64;  // of the latents, which are patches
constexpr int64_t kMaxSide = 8192;
constexpr int64_t kPatch = 1;  // latents per token along one side: the autoencoder's latents are patches

// Whatever number is given, the model looks at them; ten are the most that its authors describe.
constexpr control::PictureRules kReferences = {
    .use = control::PictureInput::kReference, .most = 10, .fit = control::ReferenceFit::kFlux2};

// The reference has a pipeline for inpainting with klein only.
constexpr control::PictureRules RulesOfKlein() {
  control::PictureRules rules = kReferences;
  rules.mask = control::MaskRule::kMiddlePixels;
  rules.usual_strength = 0.8;
  return rules;
}

// A checkpoint of FLUX.2 as one of the reference's pipelines runs it.
struct Flux2Model {
  // How prompts are read: the transformer reads the states of these layers of the text encoder, side by side, those of
  // padding, too.
  std::string before, after;
  bool has_frame = false;                          // see TextPlan
  std::optional<PaddingSide> side = std::nullopt;  // of padding; the tokenizer's if not set
  std::vector<int64_t> text_layers;
  std::string not_read;          // a mark that is deleted from prompts
  bool embeds_guidance = false;  // the guidance scale is an input of the transformer, and there is no second branch
  bool takes_guidance = true;
  bool isolates_references = false;
  control::PictureRules pictures;
};

// The chat template of Qwen3 for one message, with thinking disabled.
Flux2Model Klein() {
  return {.before = "<|im_start|>user\n",
          .after = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
          .side = PaddingSide::kRight,
          .text_layers = {9, 18, 27},
          .pictures = RulesOfKlein()};
}

// Klein that was trained to keep the keys and values of its references over all steps. They depend on nothing else, so
// computing them in each step is the same.
Flux2Model KleinKv() {
  Flux2Model model = Klein();
  model.takes_guidance = false;
  model.isolates_references = true;
  model.pictures = kReferences;
  return model;
}

// The chat template of Mistral Small 3 with the system message of the reference's pipeline.
Flux2Model Dev() {
  return {.before =
              "<s>[SYSTEM_PROMPT]You are an AI that reasons about image descriptions. You give structured "
              "responses focusing on object relationships, object\nattribution and actions without "
              "speculation.[/SYSTEM_PROMPT][INST]",
          .after = "[/INST]",
          .has_frame = true,
          .text_layers = {10, 20, 30},
          .not_read = "[IMG]",
          .embeds_guidance = true,
          .pictures = kReferences};
}

using Flux2Configs = FamilyConfigs<Flux2Config>;

bool IsDistilled(const ModelFolder& folder) {
  const base::Json* const distilled = folder.index().Find("is_distilled");
  return distilled != nullptr && distilled->AsBool().value_or(false);
}

absl::StatusOr<Flux2Configs> ReadConfigs(const ModelFolder& folder, const Flux2Model& model) {
  Flux2Configs configs;
  RETURN_IF_ERROR(ReadFamilyConfigs(folder, {"Flux2Transformer2DModel"}, ParseFlux2Config, /*texts=*/1, configs));
  configs.transformer.isolates_references = model.isolates_references;
  const TextEncoderConfig& text = configs.texts[0].config;
  const int64_t last = *std::ranges::max_element(model.text_layers);
  if (text.layers < last) {
    return absl::InvalidArgumentError(absl::StrCat("text_encoder/config.json: num_hidden_layers is ", text.layers,
                                                   "; the transformer reads the states of layer ", last));
  }
  RETURN_IF_ERROR(CheckEqual("transformer/config.json: joint_attention_dim", configs.transformer.text_width,
                             "three times the width of the states of text_encoder", 3 * text.width));
  RETURN_IF_ERROR(CheckEqual("transformer/config.json: in_channels", configs.transformer.channels,
                             "channels of the patches of vae", configs.autoencoder.latent_channels));
  if (configs.transformer.guidance != model.embeds_guidance) {
    return absl::InvalidArgumentError(absl::StrCat(
        "transformer/config.json: field \"guidance_embeds\" is ", configs.transformer.guidance ? "true" : "false",
        "; with this _class_name it must be ", model.embeds_guidance ? "true" : "false"));
  }
  return configs;
}

class Flux2Family final : public LatentFamily {
 public:
  Flux2Family(const ModelFolder& folder, const Flux2Configs& configs, Flux2Model model, const LoadOptions& options)
      : LatentFamily(folder, options, configs.autoencoder, kPatch, configs.texts,
                     TransformerOf<Flux2Transformer>(configs.transformer)),
        model_(std::move(model)),
        takes_guidance_(model_.takes_guidance && !model_.embeds_guidance && !IsDistilled(folder)) {}

  bool masks_padding() const override { return false; }
  FlowSigmas flow_sigmas() const override { return FlowSigmas::kLinear; }
  bool has_empirical_shift() const override { return true; }

  at::Tensor ToPrediction(const at::Tensor& output, const LatentGeometry& geometry) const override {
    return Unpack(output, geometry.grid, kPatch);
  }

  absl::StatusOr<EncodedPrompt> Encode(const PromptRequest& request, const parallel::ForwardContext& context) override {
    EncodedPrompt encoded{.cached = true};
    const bool guided = request.guidance_scale > 1 && takes_guidance_;
    const GuidanceWeights weights = ClassifierFreeGuidance(request.guidance_scale);
    if (guided) {
      RETURN_IF_ERROR(AddBranch(request.negative_prompt.value_or(""), "negative prompt", weights.negative, request,
                                context, encoded));
    }
    RETURN_IF_ERROR(AddBranch(request.prompt, "prompt", guided ? weights.positive : 1, request, context, encoded));
    return encoded;
  }

 protected:
  OriginalNames original_names() const override { return kOriginalNames; }

 private:
  // Padding is masked in the encoder, and its states are read by the transformer.
  absl::Status AddBranch(const std::string& prompt, const char* field, double weight, const PromptRequest& request,
                         const parallel::ForwardContext& context, EncodedPrompt& encoded) {
    const std::string read = model_.not_read.empty() ? prompt : absl::StrReplaceAll(prompt, {{model_.not_read, ""}});
    ASSIGN_OR_RETURN(const EncodedText states, EncodeText(0,
                                                          {.text = read,
                                                           .field = field,
                                                           .max_length = request.max_sequence_length,
                                                           .plan = {.before = model_.before,
                                                                    .after = model_.after,
                                                                    .has_frame = model_.has_frame,
                                                                    .padding = TextPadding::kMasked,
                                                                    .side = model_.side,
                                                                    .states = model_.text_layers}},
                                                          context, encoded));
    ConditioningRow row{.text = states.hidden, .extras = {}};
    if (model_.embeds_guidance) {
      row.extras.push_back(at::scalar_tensor(
          request.guidance_scale, at::TensorOptions(AccumulationType(options().dtype)).device(options().device)));
    }
    encoded.guidance.branches.push_back({.row = std::move(row), .terms = {{.weight = weight}}});
    encoded.prompt_tokens = states.tokens;
    return absl::OkStatus();
  }

  Flux2Model model_;
  bool takes_guidance_;
};

absl::StatusOr<FamilyDescription> Describe(const ModelFolder& folder, const Flux2Model& model) {
  ASSIGN_OR_RETURN(Flux2Configs configs, ReadConfigs(folder, model));
  const Flux2Config& transformer = configs.transformer;
  const bool distilled = !model.embeds_guidance && (IsDistilled(folder) || !model.takes_guidance);
  FamilyDescription description;
  DescribeSizes(configs.autoencoder, kPatch, kDefaultSide, kMaxSide, description);
  description.default_steps = distilled ? kDistilledSteps : kSteps;
  description.default_guidance_scale = distilled ? 0 : kGuidanceScale;
  if (distilled) description.base_model = kBaseModel;
  description.pictures = model.pictures;
  description.cost.references = description.pictures.fit;
  description.cost.guidance_is_input = model.embeds_guidance;
  description.default_max_sequence_length = description.max_sequence_length = kMaxTokens;
  description.heads = transformer.heads;
  description.blocks = transformer.double_blocks + transformer.single_blocks;
  description.exchange = {.width = transformer.width(),
                          .output_features = transformer.channels,
                          .prediction_features = transformer.channels,
                          .blocks = {},
                          .long_skips = {}};
  std::vector<parallel::BlockExchange>& blocks = description.exchange.blocks;
  blocks.resize(static_cast<size_t>(transformer.double_blocks), {.kind = parallel::BlockKind::kJoint});
  blocks.resize(static_cast<size_t>(description.blocks), {.kind = parallel::BlockKind::kFused});
  // Three matrices of that hidden width cost as much as two of one and a half times that.
  const double mlp_ratio = 1.5 * static_cast<double>(transformer.mlp_width) / static_cast<double>(transformer.width());
  DescribeStepCost(mlp_ratio, /*fixed_text_tokens=*/0, description);
  description.cost.values_per_token = static_cast<double>(control::kLiveWidthsOfFlux2 * description.exchange.width);
  DescribeParameters<Flux2Transformer>(folder, configs, kOriginalNames, description);
  return description;
}

absl::StatusOr<std::unique_ptr<Family>> LoadModel(const ModelFolder& folder, const LoadOptions& options,
                                                  const Flux2Model& model) {
  ASSIGN_OR_RETURN(const Flux2Configs configs, ReadConfigs(folder, model));
  auto family = std::make_unique<Flux2Family>(folder, configs, model, options);
  RETURN_IF_ERROR(family->Open());
  return family;
}

}  // namespace

absl::StatusOr<FamilyDescription> DescribeFlux2(const ModelFolder& folder) { return Describe(folder, Dev()); }
absl::StatusOr<FamilyDescription> DescribeFlux2Klein(const ModelFolder& folder) { return Describe(folder, Klein()); }
absl::StatusOr<FamilyDescription> DescribeFlux2KleinKv(const ModelFolder& folder) {
  return Describe(folder, KleinKv());
}

absl::StatusOr<std::unique_ptr<Family>> LoadFlux2(const ModelFolder& folder, const LoadOptions& options) {
  return LoadModel(folder, options, Dev());
}
absl::StatusOr<std::unique_ptr<Family>> LoadFlux2Klein(const ModelFolder& folder, const LoadOptions& options) {
  return LoadModel(folder, options, Klein());
}
absl::StatusOr<std::unique_ptr<Family>> LoadFlux2KleinKv(const ModelFolder& folder, const LoadOptions& options) {
  return LoadModel(folder, options, KleinKv());
}

}  // namespace tessera::models
