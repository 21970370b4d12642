#include <numeric>
#include <utility>

#include "base/macros/status_macros.h"
#include "models/families/families.h"
#include "models/families/family_description.h"
#include "models/families/guidance.h"
#include "models/families/latent_family.h"
#include "models/families/prompt_request.h"
#include "models/hunyuandit/hunyuandit_transformer.h"
#include "models/hunyuandit/image_sizes.h"
#include "models/loading/load_options.h"
#include "models/precision.h"

namespace tessera::models {
namespace {

// The reference pipeline's defaults and bounds.
constexpr int64_t kSteps = 50;
constexpr double kGuidanceScale = 5.0;
constexpr int64_t kMaxSide = 8192;
constexpr int64_t kSizeMultiple = 16;
constexpr int32_t kOriginalSide = 1024;

constexpr size_t kBert = 0, kT5 = 1;

using HunyuanConfigs = FamilyConfigs<HunyuanConfig>;

absl::StatusOr<HunyuanConfigs> ReadConfigs(const ModelFolder& folder) {
  HunyuanConfigs configs;
  RETURN_IF_ERROR(ReadFamilyConfigs(folder, {"HunyuanDiT2DModel"}, ParseHunyuanConfig, /*texts=*/2, configs));
  const TextEncoderConfig& bert = configs.texts[kBert].config;
  RETURN_IF_ERROR(CheckEqual("transformer/config.json: cross_attention_dim", configs.transformer.bert_width,
                             "text_encoder/config.json: hidden_size", bert.width));
  RETURN_IF_ERROR(CheckEqual("transformer/config.json: cross_attention_dim_t5", configs.transformer.t5_width,
                             "text_encoder_2/config.json: d_model", configs.texts[kT5].config.width));
  RETURN_IF_ERROR(CheckEqual("transformer/config.json: in_channels", configs.transformer.channels,
                             "vae/config.json: latent_channels", configs.autoencoder.latent_channels));
  if (configs.transformer.bert_tokens > bert.positions) {
    return absl::InvalidArgumentError(absl::StrCat(
        "transformer/config.json: text_len is ", configs.transformer.bert_tokens,
        "; text_encoder/config.json has a max_position_embeddings of ", bert.positions, ", which must not be less"));
  }
  return configs;
}

class HunyuanFamily final : public LatentFamily {
 public:
  HunyuanFamily(const ModelFolder& folder, const HunyuanConfigs& configs, const LoadOptions& options)
      : LatentFamily(folder, options, configs.autoencoder, configs.transformer.patch, configs.texts,
                     TransformerOf<HunyuanTransformer>(configs.transformer)),
        config_(configs.transformer) {}

  bool masks_padding() const override { return false; }

  absl::StatusOr<EncodedPrompt> Encode(const PromptRequest& request, const parallel::ForwardContext& context) override {
    if (request.max_sequence_length != config_.t5_tokens) {
      return absl::InvalidArgumentError(absl::StrCat("max_sequence_length is ", request.max_sequence_length,
                                                     "; valid for this model is ", config_.t5_tokens));
    }
    EncodedPrompt encoded{.cached = true};
    const bool guided = request.guidance_scale > 1;
    const GuidanceWeights weights = ClassifierFreeGuidance(request.guidance_scale);
    if (guided) {
      RETURN_IF_ERROR(AddBranch(request.negative_prompt.value_or(""), "negative prompt", weights.negative, request,
                                context, encoded));
      encoded.guidance.rescale = request.options.guidance_rescale;
      encoded.guidance.conditional = 1;
    }
    RETURN_IF_ERROR(AddBranch(request.prompt, "prompt", guided ? weights.positive : 1, request, context, encoded));
    return encoded;
  }

 private:
  absl::Status AddBranch(const std::string& prompt, const char* field, double weight, const PromptRequest& request,
                         const parallel::ForwardContext& context, EncodedPrompt& encoded) {
    const auto encode = [&](size_t stage, int64_t length) {
      return EncodeText(
          stage, {.text = prompt, .field = field, .max_length = length, .plan = {.padding = TextPadding::kMasked}},
          context, encoded);
    };
    ASSIGN_OR_RETURN(EncodedText bert, encode(kBert, config_.bert_tokens));
    ASSIGN_OR_RETURN(EncodedText t5, encode(kT5, config_.t5_tokens));
    const at::TensorOptions accumulation =
        at::TensorOptions(AccumulationType(options().dtype)).device(options().device);
    const auto mask = [&](int64_t tokens, int64_t length) {
      return (at::arange(length, accumulation) < tokens).to(accumulation);
    };
    ConditioningRow row{
        .text = bert.hidden,
        .extras = {t5.hidden, mask(bert.tokens, config_.bert_tokens), mask(t5.tokens, config_.t5_tokens)}};
    if (config_.style_and_size) {
      const control::OriginalSize& original = request.options.original_size;
      const auto side = [](int32_t given) { return static_cast<double>(given > 0 ? given : kOriginalSide); };
      row.extras.push_back(at::tensor({side(original.height), side(original.width), static_cast<double>(request.height),
                                       static_cast<double>(request.width), static_cast<double>(original.crop_top),
                                       static_cast<double>(original.crop_left)},
                                      at::kDouble)
                               .to(accumulation));
    }
    encoded.guidance.branches.push_back({.row = std::move(row), .terms = {{.weight = weight}}});
    encoded.prompt_tokens = t5.tokens;
    return absl::OkStatus();
  }

  HunyuanConfig config_;
};

}  // namespace

absl::StatusOr<FamilyDescription> DescribeHunyuanDiT(const ModelFolder& folder) {
  ASSIGN_OR_RETURN(HunyuanConfigs configs, ReadConfigs(folder));
  FamilyDescription description;
  DescribeSizes(configs.autoencoder, configs.transformer.patch, configs.transformer.sample_size, kMaxSide, description);
  description.size_multiple = std::lcm(kSizeMultiple, description.size_multiple);
  description.min_size = description.size_multiple;
  description.max_size = kMaxSide / description.size_multiple * description.size_multiple;
  // Binning is on by default, so the default size is a standard one.
  description.cost.sizes = HunyuanSizes();
  const control::ImageSize usual =
      control::NearestSize(description.cost.sizes, {description.default_height, description.default_width});
  description.default_height = usual.height;
  description.default_width = usual.width;
  description.default_steps = kSteps;
  description.default_guidance_scale = kGuidanceScale;
  description.can_bin = true;
  description.default_resolution_binning = true;
  description.binning_keeps_size = false;
  description.default_max_sequence_length = configs.transformer.t5_tokens;
  description.max_sequence_length = configs.transformer.t5_tokens;
  const HunyuanConfig& transformer = configs.transformer;
  DescribeBlocks(transformer, parallel::BlockKind::kCross, transformer.channels, description);
  description.exchange.long_skips = transformer.long_skips();
  description.options = {control::prompt_option::kGuidanceRescale};
  if (configs.transformer.style_and_size) description.options.push_back(control::prompt_option::kOriginalSize);
  DescribeStepCost(static_cast<double>(transformer.hidden) / static_cast<double>(transformer.width()),
                   transformer.bert_tokens, description);
  DescribeParameters<HunyuanTransformer>(folder, configs, OriginalNames::kNone, description);
  return description;
}

absl::StatusOr<std::unique_ptr<Family>> LoadHunyuanDiT(const ModelFolder& folder, const LoadOptions& options) {
  return OpenFamily<HunyuanFamily>(folder, ReadConfigs(folder), options);
}

}  // namespace tessera::models
