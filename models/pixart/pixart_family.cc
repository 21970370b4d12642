#include <utility>

#include "base/macros/status_macros.h"
#include "models/captions/caption_cleaning.h"
#include "models/families/families.h"
#include "models/families/family_description.h"
#include "models/families/guidance.h"
#include "models/families/latent_family.h"
#include "models/families/prompt_request.h"
#include "models/loading/load_options.h"
#include "models/pixart/pixart_transformer.h"
#include "models/pixart/resolution_bins.h"
#include "models/precision.h"

namespace tessera::models {
namespace {

// The reference pipelines' defaults. The lengths are those of the pipelines, whatever the tokenizer's limit is.
constexpr int64_t kSteps = 20;
constexpr double kGuidanceScale = 4.5;
constexpr int64_t kAlphaTokens = 120, kSigmaTokens = 300;
constexpr int64_t kMaxTokens = 4096;
constexpr int64_t kMaxSide = 8192;

using PixArtConfigs = FamilyConfigs<PixArtConfig>;

absl::StatusOr<PixArtConfigs> ReadConfigs(const ModelFolder& folder) {
  PixArtConfigs configs;
  RETURN_IF_ERROR(ReadFamilyConfigs(folder, {"PixArtTransformer2DModel", "Transformer2DModel"}, ParsePixArtConfig,
                                    /*texts=*/1, configs));
  RETURN_IF_ERROR(CheckEqual("transformer/config.json: caption_channels", configs.transformer.caption_channels,
                             "text_encoder/config.json: d_model", configs.texts[0].config.width));
  RETURN_IF_ERROR(CheckEqual("transformer/config.json: in_channels", configs.transformer.in_channels,
                             "vae/config.json: latent_channels", configs.autoencoder.latent_channels));
  return configs;
}

// The two pipelines have different lengths and tables of sizes.
PixArtVariant VariantOf(const ModelFolder& folder) {
  return folder.class_name() == "PixArtSigmaPipeline" ? PixArtVariant::kSigma : PixArtVariant::kAlpha;
}

class PixArtFamily final : public LatentFamily {
 public:
  PixArtFamily(const ModelFolder& folder, const PixArtConfigs& configs, const LoadOptions& options)
      : LatentFamily(folder, options, configs.autoencoder, configs.transformer.patch, configs.texts,
                     TransformerOf<PixArtTransformer>(configs.transformer)),
        config_(configs.transformer) {}

  bool masks_padding() const override { return true; }

  absl::StatusOr<EncodedPrompt> Encode(const PromptRequest& request, const parallel::ForwardContext& context) override {
    EncodedPrompt encoded{.cached = true};
    const bool guided = request.guidance_scale > 1;
    const GuidanceWeights weights = ClassifierFreeGuidance(request.guidance_scale);
    if (guided) {
      RETURN_IF_ERROR(AddBranch(request.negative_prompt.value_or(""), "negative prompt", weights.negative, request,
                                context, encoded));
    }
    RETURN_IF_ERROR(AddBranch(request.prompt, "prompt", guided ? weights.positive : 1, request, context, encoded));
    return encoded;
  }

 private:
  // Encodes one prompt and appends its branch; the positive prompt comes last.
  absl::Status AddBranch(const std::string& text, const char* field, double weight, const PromptRequest& request,
                         const parallel::ForwardContext& context, EncodedPrompt& encoded) {
    absl::StatusOr<std::string> caption = request.clean_caption ? CleanCaption(text) : PlainCaption(text);
    if (!caption.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat(field, ": ", caption.status().message(), "; use a shorter one, or set clean_caption to false"));
    }
    ASSIGN_OR_RETURN(
        EncodedText states,
        EncodeText(0, {.text = *caption, .field = field, .max_length = request.max_sequence_length}, context, encoded));
    GuidanceBranch branch{.row = {.text = states.hidden}, .terms = {{.weight = weight}}};
    if (config_.additional_conditions) {
      const double height = static_cast<double>(request.height), width = static_cast<double>(request.width);
      branch.row.extras = {at::tensor({height, width, height / width}, at::kDouble)
                               .to(AccumulationType(options().dtype))
                               .to(options().device)};
    }
    encoded.guidance.branches.push_back(std::move(branch));
    encoded.prompt_tokens = states.tokens;
    return absl::OkStatus();
  }

  PixArtConfig config_;
};

}  // namespace

absl::StatusOr<FamilyDescription> DescribePixArt(const ModelFolder& folder) {
  ASSIGN_OR_RETURN(PixArtConfigs configs, ReadConfigs(folder));
  FamilyDescription description;
  const PixArtVariant variant = VariantOf(folder);
  DescribeSizes(configs.autoencoder, configs.transformer.patch, configs.transformer.sample_size, kMaxSide, description);
  description.default_steps = kSteps;
  description.default_guidance_scale = kGuidanceScale;
  description.cost.sizes = PixArtSizes(variant, configs.transformer.sample_size);
  description.can_bin = !description.cost.sizes.sizes.empty();
  description.default_resolution_binning = description.can_bin;
  description.default_clean_caption = true;
  description.default_max_sequence_length = variant == PixArtVariant::kSigma ? kSigmaTokens : kAlphaTokens;
  description.max_sequence_length = kMaxTokens;
  const PixArtConfig& transformer = configs.transformer;
  DescribeBlocks(transformer, parallel::BlockKind::kCross, transformer.in_channels, description);
  DescribeStepCost(/*mlp_ratio=*/4, /*fixed_text_tokens=*/0, description);
  DescribeParameters<PixArtTransformer>(folder, configs, OriginalNames::kNone, description);
  return description;
}

absl::StatusOr<std::unique_ptr<Family>> LoadPixArt(const ModelFolder& folder, const LoadOptions& options) {
  return OpenFamily<PixArtFamily>(folder, ReadConfigs(folder), options);
}

}  // namespace tessera::models
