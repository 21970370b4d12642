#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/macros/status_macros.h"
#include "control/parameters/picture_input.h"
#include "models/families/families.h"
#include "models/families/family_description.h"
#include "models/families/guidance.h"
#include "models/families/latent_family.h"
#include "models/families/prompt_request.h"
#include "models/flux2/flux2_transformer.h"
#include "models/loading/load_options.h"

namespace tessera::models {
namespace {

constexpr OriginalNames kOriginalNames = OriginalNames::kFlux2;

// The reference pipeline's defaults and bounds.
constexpr int64_t kSteps = 50;
constexpr double kGuidanceScale = 4;
constexpr int64_t kMaxTokens = 512;
// The distilled checkpoints take few steps and no guidance (source: their model cards).
constexpr int64_t kDistilledSteps = 4;
constexpr char kBaseModel[] = "FLUX.2 klein base";
constexpr int64_t kDefaultSide = 64;  // of the latents, which are patches
constexpr int64_t kMaxSide = 8192;
constexpr int64_t kPatch = 1;  // latents per token along one side: the autoencoder's latents are patches

// The chat template of Qwen3 for one message, with thinking disabled.
constexpr char kBeforePrompt[] = "<|im_start|>user\n";
constexpr char kAfterPrompt[] = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";
// The layers whose states the transformer reads, side by side.
constexpr int64_t kTextLayers[] = {9, 18, 27};

using Flux2Configs = FamilyConfigs<Flux2Config>;

bool IsDistilled(const ModelFolder& folder) {
  const base::Json* const distilled = folder.index().Find("is_distilled");
  return distilled != nullptr && distilled->AsBool().value_or(false);
}

absl::StatusOr<Flux2Configs> ReadConfigs(const ModelFolder& folder) {
  Flux2Configs configs;
  RETURN_IF_ERROR(ReadFamilyConfigs(folder, {"Flux2Transformer2DModel"}, ParseFlux2Config, /*texts=*/1, configs));
  const TextEncoderConfig& text = configs.texts[0].config;
  if (text.layers < kTextLayers[2]) {
    return absl::InvalidArgumentError(absl::StrCat("text_encoder/config.json: num_hidden_layers is ", text.layers,
                                                   "; the transformer reads the states of layer ", kTextLayers[2]));
  }
  RETURN_IF_ERROR(CheckEqual("transformer/config.json: joint_attention_dim", configs.transformer.text_width,
                             "three times the width of the states of text_encoder", 3 * text.width));
  RETURN_IF_ERROR(CheckEqual("transformer/config.json: in_channels", configs.transformer.channels,
                             "channels of the patches of vae", configs.autoencoder.latent_channels));
  if (configs.transformer.guidance) {
    return absl::InvalidArgumentError(
        "transformer/config.json: field \"guidance_embeds\" is true; with this _class_name it must be false");
  }
  return configs;
}

class Flux2KleinFamily final : public LatentFamily {
 public:
  Flux2KleinFamily(const ModelFolder& folder, const Flux2Configs& configs, const LoadOptions& options)
      : LatentFamily(folder, options, configs.autoencoder, kPatch, configs.texts,
                     TransformerOf<Flux2Transformer>(configs.transformer)),
        is_distilled_(IsDistilled(folder)) {}

  bool masks_padding() const override { return false; }
  FlowSigmas flow_sigmas() const override { return FlowSigmas::kLinear; }
  bool has_empirical_shift() const override { return true; }

  at::Tensor ToPrediction(const at::Tensor& output, const LatentGeometry& geometry) const override {
    return Unpack(output, geometry.grid, kPatch);
  }

  absl::StatusOr<EncodedPrompt> Encode(const PromptRequest& request, const parallel::ForwardContext& context) override {
    EncodedPrompt encoded{.cached = true};
    const bool guided = request.guidance_scale > 1 && !is_distilled_;
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
    ASSIGN_OR_RETURN(const EncodedText states,
                     EncodeText(0,
                                {.text = prompt,
                                 .field = field,
                                 .max_length = request.max_sequence_length,
                                 .plan = {.before = kBeforePrompt,
                                          .after = kAfterPrompt,
                                          .padding = TextPadding::kMasked,
                                          .side = PaddingSide::kRight,
                                          .states = {std::begin(kTextLayers), std::end(kTextLayers)}}},
                                context, encoded));
    encoded.guidance.branches.push_back({.row = {.text = states.hidden, .extras = {}}, .terms = {{.weight = weight}}});
    encoded.prompt_tokens = states.tokens;
    return absl::OkStatus();
  }

  bool is_distilled_;
};

}  // namespace

absl::StatusOr<FamilyDescription> DescribeFlux2Klein(const ModelFolder& folder) {
  ASSIGN_OR_RETURN(Flux2Configs configs, ReadConfigs(folder));
  const Flux2Config& transformer = configs.transformer;
  const bool distilled = IsDistilled(folder);
  FamilyDescription description;
  DescribeSizes(configs.autoencoder, kPatch, kDefaultSide, kMaxSide, description);
  description.default_steps = distilled ? kDistilledSteps : kSteps;
  description.default_guidance_scale = distilled ? 0 : kGuidanceScale;
  if (distilled) description.base_model = kBaseModel;
  description.pictures = control::PictureInput::kNone;
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
  DescribeParameters<Flux2Transformer>(folder, configs, kOriginalNames, description);
  return description;
}

absl::StatusOr<std::unique_ptr<Family>> LoadFlux2Klein(const ModelFolder& folder, const LoadOptions& options) {
  return OpenFamily<Flux2KleinFamily>(folder, ReadConfigs(folder), options);
}

}  // namespace tessera::models
