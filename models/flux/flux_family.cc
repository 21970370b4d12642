#include <utility>

#include "base/macros/status_macros.h"
#include "control/pictures/picture_input.h"
#include "models/families/families.h"
#include "models/families/family_description.h"
#include "models/families/guidance.h"
#include "models/families/latent_family.h"
#include "models/families/prompt_request.h"
#include "models/flux/flux_transformer.h"
#include "models/loading/load_options.h"
#include "models/precision.h"

namespace tessera::models {
namespace {

constexpr OriginalNames kOriginalNames = OriginalNames::kFlux;

// The reference pipeline's defaults and bounds.
constexpr int64_t kSteps = 28;
constexpr double kGuidanceScale = 3.5;
constexpr int64_t kMaxTokens = 512;
constexpr int64_t kFillSteps = 50;
constexpr double kFillGuidanceScale = 30;
// FLUX.1-schnell is distilled to few steps and has no guidance scale (source: its model card). It is recognised by its
// configuration, which has no embedding of a guidance scale.
constexpr int64_t kDistilledSteps = 4;
constexpr int64_t kDistilledTokens = 256;
constexpr char kBaseModel[] = "FLUX.1-dev";
constexpr int64_t kDefaultLatentSide = 128;
constexpr int64_t kMaxSide = 8192;
constexpr int64_t kPatch = 2;  // latents per token along one side

constexpr size_t kClip = 0, kT5 = 1;

using FluxConfigs = FamilyConfigs<FluxConfig>;

control::PictureInput PicturesOf(const ModelFolder& folder) {
  if (folder.class_name() == "FluxFillPipeline") return control::PictureInput::kFill;
  if (folder.class_name() == "FluxKontextPipeline") return control::PictureInput::kReference;
  return control::PictureInput::kStart;
}

absl::StatusOr<FluxConfigs> ReadConfigs(const ModelFolder& folder) {
  FluxConfigs configs;
  RETURN_IF_ERROR(ReadFamilyConfigs(folder, {"FluxTransformer2DModel"}, ParseFluxConfig, /*texts=*/2, configs));
  RETURN_IF_ERROR(CheckEqual("transformer/config.json: pooled_projection_dim", configs.transformer.pooled_width,
                             "width of the pooled output of text_encoder", configs.texts[kClip].config.pooled_width));
  RETURN_IF_ERROR(CheckEqual("transformer/config.json: joint_attention_dim", configs.transformer.text_width,
                             "width of the states of text_encoder_2", configs.texts[kT5].config.width));
  RETURN_IF_ERROR(CheckEqual("a quarter of transformer/config.json: out_channels",
                             configs.transformer.latent_channels(), "vae/config.json: latent_channels",
                             configs.autoencoder.latent_channels));
  const bool fills = PicturesOf(folder) == control::PictureInput::kFill;
  const int64_t mask_channels = configs.autoencoder.factor * configs.autoencoder.factor * kPatch * kPatch;
  RETURN_IF_ERROR(CheckEqual("transformer/config.json: in_channels - out_channels",
                             configs.transformer.condition_channels,
                             "channels of a masked picture and its mask, with this _class_name",
                             fills ? configs.transformer.channels + mask_channels : 0));
  return configs;
}

class FluxFamily final : public LatentFamily {
 public:
  FluxFamily(const ModelFolder& folder, const FluxConfigs& configs, const LoadOptions& options)
      : LatentFamily(folder, options, configs.autoencoder, kPatch, configs.texts,
                     TransformerOf<FluxTransformer>(configs.transformer)),
        config_(configs.transformer) {}

  bool masks_padding() const override { return false; }
  FlowSigmas flow_sigmas() const override { return FlowSigmas::kLinear; }

  at::Tensor ToPrediction(const at::Tensor& output, const LatentGeometry& geometry) const override {
    return Unpack(output, geometry.grid, kPatch);
  }

  absl::StatusOr<EncodedPrompt> Encode(const PromptRequest& request, const parallel::ForwardContext& context) override {
    EncodedPrompt encoded{.cached = true};
    const control::PromptOptions& o = request.options;
    const bool guided = o.true_cfg_scale > 1 && request.negative_prompt.has_value();
    const GuidanceWeights weights = ClassifierFreeGuidance(o.true_cfg_scale);
    if (guided) {
      RETURN_IF_ERROR(AddBranch({*request.negative_prompt, o.negative_prompt_2}, "negative prompt", weights.negative,
                                request, context, encoded));
    }
    RETURN_IF_ERROR(
        AddBranch({request.prompt, o.prompt_2}, "prompt", guided ? weights.positive : 1, request, context, encoded));
    return encoded;
  }

 protected:
  OriginalNames original_names() const override { return kOriginalNames; }

 private:
  struct Texts {
    const std::string& first;
    const std::string& second;  // empty: same as `first`
  };

  absl::Status AddBranch(const Texts& texts, const char* field, double weight, const PromptRequest& request,
                         const parallel::ForwardContext& context, EncodedPrompt& encoded) {
    ASSIGN_OR_RETURN(EncodedText clip, EncodeText(kClip,
                                                  {.text = texts.first,
                                                   .field = field,
                                                   .max_length = text(kClip).full_length(),
                                                   .plan = {.padding = TextPadding::kAttended},
                                                   .adapters = request.adapters},
                                                  context, encoded));
    ASSIGN_OR_RETURN(EncodedText t5, EncodeText(kT5,
                                                {.text = texts.second.empty() ? texts.first : texts.second,
                                                 .field = field,
                                                 .max_length = request.max_sequence_length,
                                                 .plan = {.padding = TextPadding::kAttended}},
                                                context, encoded));
    GuidanceBranch branch{.row = {.text = t5.hidden, .extras = {clip.pooled}}, .terms = {{.weight = weight}}};
    if (config_.guidance) {
      branch.row.extras.push_back(at::scalar_tensor(
          request.guidance_scale, at::TensorOptions(AccumulationType(options().dtype)).device(options().device)));
    }
    encoded.guidance.branches.push_back(std::move(branch));
    encoded.prompt_tokens = t5.tokens;
    return absl::OkStatus();
  }

  FluxConfig config_;
};

}  // namespace

absl::StatusOr<FamilyDescription> DescribeFlux(const ModelFolder& folder) {
  ASSIGN_OR_RETURN(FluxConfigs configs, ReadConfigs(folder));
  FamilyDescription description;
  DescribeSizes(configs.autoencoder, kPatch, kDefaultLatentSide, kMaxSide, description);
  const bool distilled = !configs.transformer.guidance;
  description.default_steps = distilled ? kDistilledSteps : kSteps;
  description.default_guidance_scale = distilled ? 0 : kGuidanceScale;
  if (distilled) description.base_model = kBaseModel;
  description.pictures = control::UsualRules(PicturesOf(folder));
  if (description.pictures.use == control::PictureInput::kFill) {
    description.default_steps = kFillSteps;
    description.default_guidance_scale = kFillGuidanceScale;
  }
  description.default_max_sequence_length = distilled ? kDistilledTokens : kMaxTokens;
  description.max_sequence_length = kMaxTokens;
  description.heads = configs.transformer.heads;
  description.blocks = configs.transformer.double_blocks + configs.transformer.single_blocks;
  const FluxConfig& transformer = configs.transformer;
  description.exchange = {.width = transformer.width(),
                          .output_features = transformer.channels,
                          .prediction_features = transformer.channels,
                          .blocks = {},
                          .long_skips = {}};
  std::vector<parallel::BlockExchange>& blocks = description.exchange.blocks;
  blocks.resize(static_cast<size_t>(transformer.double_blocks), {.kind = parallel::BlockKind::kJoint});
  blocks.resize(static_cast<size_t>(description.blocks), {.kind = parallel::BlockKind::kFused});
  description.options = {control::prompt_option::kPrompt2, control::prompt_option::kTrueCfgScale};
  description.cost.guidance_is_input = true;
  description.cost.references = description.pictures.fit;
  DescribeStepCost(/*mlp_ratio=*/4, /*fixed_text_tokens=*/0, description);
  DescribeParameters<FluxTransformer>(folder, configs, kOriginalNames, description);
  return description;
}

absl::StatusOr<std::unique_ptr<Family>> LoadFlux(const ModelFolder& folder, const LoadOptions& options) {
  return OpenFamily<FluxFamily>(folder, ReadConfigs(folder), options);
}

}  // namespace tessera::models
