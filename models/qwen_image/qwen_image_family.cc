#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/macros/status_macros.h"
#include "control/pictures/picture_frames.h"
#include "control/pictures/picture_input.h"
#include "models/families/families.h"
#include "models/families/family_description.h"
#include "models/families/guidance.h"
#include "models/families/latent_family.h"
#include "models/families/prompt_request.h"
#include "models/loading/load_options.h"
#include "models/qwen_image/edit_prompt.h"
#include "models/qwen_image/qwen_image_transformer.h"
#include "models/text_encoders/picture_processor.h"

namespace tessera::models {
namespace {

constexpr OriginalNames kOriginalNames = OriginalNames::kQwenImage;

// The reference pipeline's defaults and bounds.
constexpr int64_t kSteps = 50;
constexpr int64_t kDefaultTokens = 512;
constexpr int64_t kMaxTokens = 1024;
constexpr int64_t kDefaultLatentSide = 128;
constexpr int64_t kMaxSide = 8192;
constexpr int64_t kPatch = 2;  // latents per token along one side

// The template of the reference pipeline, and the tokens of its beginning, whose states are dropped.
constexpr char kBeforePrompt[] =
    "<|im_start|>system\nDescribe the image by detailing the color, shape, size, texture, quantity, text, spatial "
    "relationships of the objects and background:<|im_end|>\n<|im_start|>user\n";
constexpr char kAfterPrompt[] = "<|im_end|>\n<|im_start|>assistant\n";
constexpr int64_t kTemplateTokens = 34;

// Of a prompt with pictures. With their tokens it ends within the model's table of positions.
constexpr int64_t kMaxEditTokens = 2048;

using QwenImageConfigs = FamilyConfigs<QwenImageConfig>;

absl::StatusOr<QwenImageConfigs> ReadConfigs(const ModelFolder& folder) {
  QwenImageConfigs configs;
  RETURN_IF_ERROR(
      ReadFamilyConfigs(folder, {"QwenImageTransformer2DModel"}, ParseQwenImageConfig, /*texts=*/1, configs));
  RETURN_IF_ERROR(CheckEqual("transformer/config.json: joint_attention_dim", configs.transformer.text_width,
                             "width of the states of text_encoder", configs.texts[0].config.width));
  RETURN_IF_ERROR(CheckEqual("a quarter of transformer/config.json: in_channels", configs.transformer.latent_channels(),
                             "vae/config.json: z_dim", configs.autoencoder.latent_channels));
  if (EditingOf(folder.class_name()) != Editing::kNone && configs.texts[0].processor == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("model_index.json: ", folder.class_name(),
                                                   " needs a component \"processor\" and a text_encoder of class "
                                                   "Qwen2_5_VLForConditionalGeneration, which reads pictures"));
  }
  return configs;
}

class QwenImageFamily final : public LatentFamily {
 public:
  QwenImageFamily(const ModelFolder& folder, const QwenImageConfigs& configs, const LoadOptions& options)
      : LatentFamily(folder, options, configs.autoencoder, kPatch, configs.texts,
                     TransformerOf<QwenImageTransformer>(configs.transformer)),
        editing_(EditingOf(folder.class_name())) {}

  // Texts have no padding, so those of different lengths do not share a pass.
  bool masks_padding() const override { return false; }
  bool pads_texts() const override { return false; }
  FlowSigmas flow_sigmas() const override { return FlowSigmas::kLinear; }

  at::Tensor ToPrediction(const at::Tensor& output, const LatentGeometry& geometry) const override {
    return Unpack(output, geometry.grid, kPatch);
  }

  absl::StatusOr<EncodedPrompt> Encode(const PromptRequest& request, const parallel::ForwardContext& context) override {
    if (editing_ != Editing::kNone && request.pictures == nullptr) {
      return absl::InvalidArgumentError("images are missing; this model edits images: give at least one");
    }
    EncodedPrompt encoded{.cached = true};
    const control::PromptOptions& o = request.options;
    const bool guided = o.true_cfg_scale > 1 && request.negative_prompt.has_value();
    const GuidanceWeights weights = ClassifierFreeGuidance(o.true_cfg_scale);
    if (guided) {
      RETURN_IF_ERROR(
          AddBranch(*request.negative_prompt, "negative prompt", weights.negative, request, context, encoded));
      encoded.guidance.kept_norm_patch = kPatch;
      encoded.guidance.conditional = 1;
    }
    RETURN_IF_ERROR(AddBranch(request.prompt, "prompt", guided ? weights.positive : 1, request, context, encoded));
    return encoded;
  }

 protected:
  OriginalNames original_names() const override { return kOriginalNames; }

 private:
  absl::Status AddBranch(const std::string& prompt, const char* field, double weight, const PromptRequest& request,
                         const parallel::ForwardContext& context, EncodedPrompt& encoded) {
    if (editing_ != Editing::kNone) return AddEditBranch(prompt, field, weight, request, context, encoded);
    ASSIGN_OR_RETURN(const EncodedText states,
                     EncodeText(0,
                                {.text = prompt,
                                 .field = field,
                                 .max_length = kMaxTokens,
                                 .plan = {.before = kBeforePrompt, .after = kAfterPrompt, .dropped = kTemplateTokens}},
                                context, encoded));
    // The reference cuts the states, not the text.
    const int64_t tokens = std::min(states.hidden.size(0), request.max_sequence_length);
    if (tokens < states.hidden.size(0)) {
      encoded.warnings.push_back(absl::StrCat("the ", field, " has ", states.hidden.size(0),
                                              " tokens with its template; only the first ", tokens, " are read"));
    }
    encoded.guidance.branches.push_back(
        {.row = {.text = states.hidden.narrow(0, 0, tokens), .extras = {}}, .terms = {{.weight = weight}}});
    encoded.prompt_tokens = tokens;
    return absl::OkStatus();
  }

  // The prompt holds the request's pictures. Its maximum length has no effect, as in the reference.
  absl::Status AddEditBranch(const std::string& prompt, const char* field, double weight, const PromptRequest& request,
                             const parallel::ForwardContext& context, EncodedPrompt& encoded) {
    ASSIGN_OR_RETURN(const EncodedText states,
                     EncodeText(0,
                                {.text = prompt,
                                 .field = field,
                                 .max_length = kMaxEditTokens,
                                 .plan = EditPlan(editing_, request.pictures->pictures.size()),
                                 .pictures = request.pictures},
                                context, encoded));
    encoded.guidance.branches.push_back({.row = {.text = states.hidden, .extras = {}}, .terms = {{.weight = weight}}});
    encoded.prompt_tokens = states.tokens;
    return absl::OkStatus();
  }

  Editing editing_;
};

}  // namespace

absl::StatusOr<FamilyDescription> DescribeQwenImage(const ModelFolder& folder) {
  ASSIGN_OR_RETURN(QwenImageConfigs configs, ReadConfigs(folder));
  const QwenImageConfig& transformer = configs.transformer;
  FamilyDescription description;
  DescribeSizes(configs.autoencoder, kPatch, kDefaultLatentSide, kMaxSide, description);
  description.default_steps = kSteps;
  description.default_guidance_scale = 0;  // true guidance only
  switch (EditingOf(folder.class_name())) {
    case Editing::kNone:
      description.pictures = control::kStartsFromPicture;
      break;
    case Editing::kOnePicture:
      description.pictures = control::kQwenEditPictures;
      break;
    case Editing::kPictures:
      description.pictures = control::kQwenEditPlusPictures;
      break;
  }
  description.cost.references = description.pictures.fit;
  description.default_max_sequence_length = kDefaultTokens;
  description.max_sequence_length = kMaxTokens;
  description.heads = transformer.heads;
  description.blocks = transformer.layers;
  const int64_t features = kPatch * kPatch * transformer.latent_channels();
  description.exchange = {.width = transformer.width(),
                          .output_features = features,
                          .prediction_features = features,
                          .blocks = {},
                          .long_skips = {}};
  // The text's result of the last block is not used. It is computed nevertheless, because reference pictures go with
  // the text.
  description.exchange.blocks.resize(static_cast<size_t>(transformer.layers), {.kind = parallel::BlockKind::kJoint});
  description.options = {control::prompt_option::kTrueCfgScale};
  description.cost.guidance_is_input = true;
  DescribeStepCost(/*mlp_ratio=*/4, /*fixed_text_tokens=*/0, description);
  // The modulation of the references is half as wide as that of image and text.
  if (transformer.clean_references) description.cost.values_per_block *= 1.5;
  DescribeParameters<QwenImageTransformer>(folder, configs, kOriginalNames, description);
  return description;
}

absl::StatusOr<std::unique_ptr<Family>> LoadQwenImage(const ModelFolder& folder, const LoadOptions& options) {
  return OpenFamily<QwenImageFamily>(folder, ReadConfigs(folder), options);
}

}  // namespace tessera::models
