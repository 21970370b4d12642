#include "models/pixart/pixart_family.h"

#include <utility>

#include "base/status_macros.h"
#include "models/captions/caption_cleaning.h"
#include "models/families/latent_family.h"
#include "models/guidance.h"
#include "models/pixart/pixart_transformer.h"
#include "models/pixart/resolution_bins.h"
#include "models/precision.h"

namespace tessera {
namespace {

// The reference pipelines' defaults. The lengths are those pipelines', whatever the tokenizer's own limit is.
constexpr int64_t kSteps = 20;
constexpr double kGuidanceScale = 4.5;
constexpr int64_t kAlphaTokens = 120, kSigmaTokens = 300;
constexpr int64_t kMaxTokens = 4096;
constexpr int64_t kMaxSide = 8192;

struct PixArtConfigs {
  PixArtConfig transformer;
  TextStageConfig text;
  AutoencoderConfig autoencoder;
  PixArtVariant variant = PixArtVariant::kAlpha;  // the two pipelines' lengths and tables of sizes differ
  std::vector<std::string> warnings;
};

absl::StatusOr<PixArtConfigs> ReadConfigs(const ModelFolder& folder) {
  PixArtConfigs configs;
  if (folder.class_name() == "PixArtSigmaPipeline") configs.variant = PixArtVariant::kSigma;
  ASSIGN_OR_RETURN(TextStageConfig text, ReadTextStage(folder, "tokenizer", "text_encoder", configs.warnings));
  configs.text = std::move(text);
  for (const absl::Status& status :
       {CheckClass(folder, "transformer", {"PixArtTransformer2DModel", "Transformer2DModel"}),
        CheckClass(folder, "vae", {"AutoencoderKL"}),
        ReadConfig(folder, "transformer", ParsePixArtConfig, configs.transformer, configs.warnings),
        ReadConfig(folder, "vae", ParseAutoencoderConfig, configs.autoencoder, configs.warnings),
        CheckEqual("transformer/config.json: caption_channels", configs.transformer.caption_channels,
                   "text_encoder/config.json: d_model", configs.text.config.width()),
        CheckEqual("transformer/config.json: in_channels", configs.transformer.in_channels,
                   "vae/config.json: latent_channels", configs.autoencoder.latent_channels)}) {
    if (!status.ok()) return status;
  }
  return configs;
}

Component<Transformer>::Make MakeTransformer(const PixArtConfig& config) {
  return [config](ParamTable& table) { return std::make_unique<PixArtTransformer>(config, table); };
}

class PixArtFamily final : public LatentFamily {
 public:
  PixArtFamily(const ModelFolder& folder, const PixArtConfigs& configs, const LoadOptions& options)
      : LatentFamily(folder, options, configs.autoencoder, configs.transformer.patch, {configs.text},
                     MakeTransformer(configs.transformer)),
        config_(configs.transformer),
        variant_(configs.variant) {}

  ImageSize BinnedSize(ImageSize requested) const override {
    const BinnedImageSize size =
        ClassifySize(requested.height, requested.width, *BinTable(variant_, config_.sample_size));
    return {.height = size.height, .width = size.width};
  }

  bool masks_padding() const override { return true; }

  absl::StatusOr<EncodedPrompt> Encode(const PromptRequest& request, const ForwardContext& context) override {
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
                         const ForwardContext& context, EncodedPrompt& encoded) {
    const std::string caption = request.clean_caption ? CleanCaption(text) : PlainCaption(text);
    absl::StatusOr<EncodedText> states =
        EncodeText(0, {.text = caption, .field = field, .max_length = request.max_sequence_length}, context, encoded);
    if (!states.ok()) return states.status();
    GuidanceBranch branch{.row = {.text = states->hidden}, .terms = {{.weight = weight}}};
    if (config_.additional_conditions) {
      const double height = static_cast<double>(request.height), width = static_cast<double>(request.width);
      branch.row.extras = {at::tensor({height, width, height / width}, at::kDouble)
                               .to(AccumulationType(options().dtype))
                               .to(options().device)};
    }
    encoded.guidance.branches.push_back(std::move(branch));
    encoded.prompt_tokens = states->tokens;
    return absl::OkStatus();
  }

  PixArtConfig config_;
  PixArtVariant variant_;
};

}  // namespace

absl::StatusOr<FamilyDescription> DescribePixArt(const ModelFolder& folder) {
  ASSIGN_OR_RETURN(PixArtConfigs configs, ReadConfigs(folder));
  FamilyDescription description;
  DescribeSizes(configs.autoencoder, configs.transformer.patch, configs.transformer.sample_size, kMaxSide, description);
  description.default_steps = kSteps;
  description.default_guidance_scale = kGuidanceScale;
  description.can_bin = BinTable(configs.variant, configs.transformer.sample_size).has_value();
  description.default_resolution_binning = description.can_bin;
  description.default_clean_caption = true;
  description.default_max_sequence_length = configs.variant == PixArtVariant::kSigma ? kSigmaTokens : kAlphaTokens;
  description.max_sequence_length = kMaxTokens;
  description.heads = configs.transformer.heads;
  description.blocks = configs.transformer.layers;
  const PixArtConfig& transformer = configs.transformer;
  const int64_t latents = transformer.patch * transformer.patch;  // of a token and channel
  description.exchange = {
      .width = transformer.width(),
      .output_features = latents * transformer.out_channels,
      .prediction_features = latents * transformer.in_channels,
      .blocks = std::vector<BlockExchange>(static_cast<size_t>(transformer.layers), {.kind = BlockKind::kCross}),
      .long_skips = {}};
  DescribeBlockCosts(/*mlp_ratio=*/4, transformer.sample_size, transformer.patch,
                     description.default_max_sequence_length, description);
  description.warnings = configs.warnings;
  WarnOfExtraTensors(folder, MakeTransformer(configs.transformer), {configs.text}, configs.autoencoder, description);
  return description;
}

absl::StatusOr<std::unique_ptr<Family>> LoadPixArt(const ModelFolder& folder, const LoadOptions& options) {
  return OpenFamily<PixArtFamily>(folder, ReadConfigs(folder), options);
}

}  // namespace tessera
