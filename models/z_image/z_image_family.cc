#include <algorithm>
#include <utility>

#include "base/macros/planted.h"
#include "base/macros/status_macros.h"
#include "control/pictures/picture_input.h"
#include "models/families/families.h"
#include "models/families/family_description.h"
#include "models/families/guidance.h"
#include "models/families/latent_family.h"
#include "models/families/prompt_request.h"
#include "models/loading/load_options.h"
#include "models/precision.h"
#include "models/z_image/z_image_transformer.h"

namespace tessera::models {
namespace {

constexpr OriginalNames kOriginalNames = OriginalNames::kZImage;

// The reference pipeline's defaults and bounds.
constexpr int64_t kSteps = 50;
constexpr double kGuidanceScale = 5;
constexpr int64_t kMaxTokens = 512;
// Z-Image Turbo is distilled to few steps without guidance (source: its model card). Its configuration differs from the
// base model's only in the shift of the schedule.
constexpr int64_t kDistilledSteps = 9;
constexpr double kDistilledShift = 3;
constexpr char kBaseModel[] = "Z-Image";
constexpr int64_t kDefaultLatentSide = 128;

// The chat template of Qwen3 for one message, with thinking enabled.
constexpr char kBeforePrompt[] = "<|im_start|>user\n";
constexpr char kAfterPrompt[] = "<|im_end|>\n<|im_start|>assistant\n";

using ZImageConfigs = FamilyConfigs<ZImageConfig>;

absl::StatusOr<ZImageConfigs> ReadConfigs(const ModelFolder& folder) {
  ZImageConfigs configs;
  RETURN_IF_ERROR(ReadFamilyConfigs(folder, {"ZImageTransformer2DModel"}, ParseZImageConfig, /*texts=*/1, configs));
  RETURN_IF_ERROR(CheckEqual("transformer/config.json: cap_feat_dim", configs.transformer.text_width,
                             "width of the states of text_encoder", configs.texts[0].config.width));
  RETURN_IF_ERROR(CheckEqual("transformer/config.json: in_channels", configs.transformer.channels,
                             "vae/config.json: latent_channels", configs.autoencoder.latent_channels));
  return configs;
}

int64_t PaddedTokens(int64_t tokens) {
  constexpr int64_t kStep = ZImageConfig::kTokensPadded;
  return (tokens + kStep - 1) / kStep * kStep;
}

class ZImageFamily final : public LatentFamily {
 public:
  ZImageFamily(const ModelFolder& folder, const ZImageConfigs& configs, const LoadOptions& options)
      : LatentFamily(folder, options, configs.autoencoder, ZImageConfig::kPatch, configs.texts,
                     TransformerOf<ZImageTransformer>(configs.transformer)) {}

  bool masks_padding() const override { return false; }
  bool pads_texts() const override { return false; }
  FlowSigmas flow_sigmas() const override { return FlowSigmas::kSingleLinear; }
  int64_t PaddingOf(TokenGrid grid) const override { return PaddedTokens(grid.image()) - grid.image(); }

  // The features of a patch are ordered (row, column, channel), in and out.
  at::Tensor ToPatches(const at::Tensor& latents) const override {
    constexpr int64_t kPixels = ZImageConfig::kPatch * ZImageConfig::kPatch;
    const at::Tensor patches = Patchify(latents, ZImageConfig::kPatch);
    if (base::Planted("z_image_channel_slowest")) return patches;
    return patches.unflatten(2, {-1, kPixels}).transpose(2, 3).flatten(2);
  }

  // The model predicts the direction from noise to the image, and samplers read the opposite.
  at::Tensor ToPrediction(const at::Tensor& output, const LatentGeometry& geometry) const override {
    return -Unpatchify(output.narrow(1, 0, geometry.grid.image()), geometry.grid, ZImageConfig::kPatch);
  }

  absl::StatusOr<EncodedPrompt> Encode(const PromptRequest& request, const parallel::ForwardContext& context) override {
    EncodedPrompt encoded{.cached = true};
    // The reference's scale is the usual one minus 1. Guidance ends at a timestep, after which the prompt's prediction
    // counts alone.
    const double scale = request.guidance_scale;
    const double last = 1000 * (1 - request.options.cfg_truncation);
    if (scale > 0) {
      RETURN_IF_ERROR(AddBranch(request.negative_prompt.value_or(""), "negative prompt",
                                {{.weight = -scale, .least_timestep = last}}, request, context, encoded));
      RETURN_IF_ERROR(AddBranch(request.prompt, "prompt", {{.weight = 1}, {.weight = scale, .least_timestep = last}},
                                request, context, encoded));
      encoded.guidance.norm_limit = request.options.cfg_normalization;
      encoded.guidance.conditional = 1;
      return encoded;
    }
    RETURN_IF_ERROR(AddBranch(request.prompt, "prompt", {{.weight = 1}}, request, context, encoded));
    return encoded;
  }

 protected:
  OriginalNames original_names() const override { return kOriginalNames; }

 private:
  absl::Status AddBranch(const std::string& prompt, const char* field, std::vector<GuidanceTerm> terms,
                         const PromptRequest& request, const parallel::ForwardContext& context,
                         EncodedPrompt& encoded) {
    ASSIGN_OR_RETURN(const EncodedText states,
                     EncodeText(0,
                                {.text = prompt,
                                 .field = field,
                                 .max_length = request.max_sequence_length,
                                 .plan = {.before = kBeforePrompt, .after = kAfterPrompt, .states = {-2}}},
                                context, encoded));
    const int64_t tokens = states.hidden.size(0);
    const at::Tensor count =
        at::scalar_tensor(tokens, at::TensorOptions(AccumulationType(options().dtype)).device(options().device));
    encoded.guidance.branches.push_back(
        {.row = {.text = at::constant_pad_nd(states.hidden, {0, 0, 0, PaddedTokens(tokens) - tokens}),
                 .extras = {count}},
         .terms = std::move(terms)});
    encoded.prompt_tokens = states.tokens;
    return absl::OkStatus();
  }
};

// Whether the schedule is that of the distilled model.
absl::StatusOr<bool> IsDistilled(const ModelFolder& folder) {
  ASSIGN_OR_RETURN(base::ConfigReader scheduler, folder.Config("scheduler"));
  return scheduler.Number("shift", 1) <= kDistilledShift;
}

}  // namespace

absl::StatusOr<FamilyDescription> DescribeZImage(const ModelFolder& folder) {
  ASSIGN_OR_RETURN(ZImageConfigs configs, ReadConfigs(folder));
  ASSIGN_OR_RETURN(const bool distilled, IsDistilled(folder));
  const ZImageConfig& transformer = configs.transformer;
  FamilyDescription description;
  const int64_t longest_side = std::min(transformer.axis_lengths[1], transformer.axis_lengths[2]);
  DescribeSizes(configs.autoencoder, ZImageConfig::kPatch, kDefaultLatentSide,
                longest_side * ZImageConfig::kPatch * configs.autoencoder.factor, description);
  description.default_height = description.default_width = std::min(description.default_height, description.max_size);
  description.default_steps = distilled ? kDistilledSteps : kSteps;
  description.default_guidance_scale = distilled ? 0 : kGuidanceScale;
  if (distilled) description.base_model = kBaseModel;
  description.pictures = control::kStartsFromPicture;
  // Text tokens are positions of the first axis, and the image's is the next one.
  description.max_sequence_length = std::min(
      kMaxTokens, (transformer.axis_lengths[0] - 2) / ZImageConfig::kTokensPadded * ZImageConfig::kTokensPadded);
  description.default_max_sequence_length = description.max_sequence_length;
  description.heads = transformer.heads;
  description.blocks = transformer.refiners + transformer.layers;
  const int64_t features = ZImageConfig::kPatch * ZImageConfig::kPatch * transformer.channels;
  description.exchange = {.width = transformer.width,
                          .output_features = features,
                          .prediction_features = features,
                          .blocks = {},
                          .long_skips = {}};
  std::vector<parallel::BlockExchange>& blocks = description.exchange.blocks;
  blocks.resize(static_cast<size_t>(transformer.refiners), {.kind = parallel::BlockKind::kImage});
  blocks.resize(static_cast<size_t>(description.blocks), {.kind = parallel::BlockKind::kUnified});
  // Three matrices of that hidden width cost as much as two of one and a half times that.
  const double mlp_ratio = 1.5 * static_cast<double>(transformer.hidden()) / static_cast<double>(transformer.width);
  description.cost.guided_above = 0;
  description.options = {control::prompt_option::kCfgNormalization, control::prompt_option::kCfgTruncation};
  DescribeStepCost(mlp_ratio, /*fixed_text_tokens=*/0, description);
  DescribeParameters<ZImageTransformer>(folder, configs, kOriginalNames, description);
  return description;
}

absl::StatusOr<std::unique_ptr<Family>> LoadZImage(const ModelFolder& folder, const LoadOptions& options) {
  return OpenFamily<ZImageFamily>(folder, ReadConfigs(folder), options);
}

}  // namespace tessera::models
