#include <algorithm>
#include <optional>
#include <utility>

#include "base/macros/status_macros.h"
#include "control/pictures/picture_input.h"
#include "models/families/families.h"
#include "models/families/family_description.h"
#include "models/families/guidance.h"
#include "models/families/latent_family.h"
#include "models/families/prompt_request.h"
#include "models/loading/load_options.h"
#include "models/sd3/sd3_transformer.h"

namespace tessera::models {
namespace {

constexpr OriginalNames kOriginalNames = OriginalNames::kSd3;

// The reference pipeline's defaults and bounds.
constexpr int64_t kSteps = 28;
constexpr double kGuidanceScale = 7.0;
constexpr int64_t kClipTokens = 77;
constexpr int64_t kDefaultTokens = 256, kMaxTokens = 512;
constexpr int64_t kMaxSide = 8192;

constexpr size_t kClipL = 0, kClipG = 1, kT5 = 2;

// The text encoders are CLIP-L, CLIP-G and, if the model has it, T5.
using Sd3Configs = FamilyConfigs<Sd3Config>;

absl::StatusOr<Sd3Configs> ReadConfigs(const ModelFolder& folder) {
  Sd3Configs configs;
  RETURN_IF_ERROR(ReadFamilyConfigs(folder, {"SD3Transformer2DModel"}, ParseSd3Config,
                                    /*texts=*/folder.HasComponent("text_encoder_3") ? 3 : 2, configs));
  const TextEncoderConfig &l = configs.texts[kClipL].config, &g = configs.texts[kClipG].config;
  RETURN_IF_ERROR(CheckEqual("transformer/config.json: pooled_projection_dim", configs.transformer.pooled_width,
                             "width of the pooled outputs of text_encoder and text_encoder_2",
                             l.pooled_width + g.pooled_width));
  RETURN_IF_ERROR(CheckEqual("max_position_embeddings of text_encoder/config.json", l.positions,
                             "that of text_encoder_2", g.positions));
  RETURN_IF_ERROR(CheckEqual("transformer/config.json: in_channels", configs.transformer.channels,
                             "vae/config.json: latent_channels", configs.autoencoder.latent_channels));
  const int64_t width = configs.transformer.text_width;
  if (l.width + g.width > width) {
    return absl::InvalidArgumentError(
        absl::StrCat("transformer/config.json: joint_attention_dim is ", width, "; the states of text_encoder and ",
                     "text_encoder_2 together have a width of ", l.width + g.width, ", which must not be more"));
  }
  if (configs.texts.size() > kT5) {
    RETURN_IF_ERROR(CheckEqual("transformer/config.json: joint_attention_dim", width,
                               "width of the states of text_encoder_3", configs.texts[kT5].config.width));
  }
  return configs;
}

class Sd3Family final : public LatentFamily {
 public:
  Sd3Family(const ModelFolder& folder, const Sd3Configs& configs, const LoadOptions& options)
      : LatentFamily(folder, options, configs.autoencoder, configs.transformer.patch, configs.texts,
                     TransformerOf<Sd3Transformer>(configs.transformer)),
        config_(configs.transformer),
        has_t5_(configs.texts.size() > kT5) {}

  bool masks_padding() const override { return false; }

  absl::StatusOr<EncodedPrompt> Encode(const PromptRequest& request, const parallel::ForwardContext& context) override {
    const control::PromptOptions& o = request.options;
    const int64_t layers = std::min(text(kClipL).config().layers, text(kClipG).config().layers);
    if (o.clip_skip < 0 || o.clip_skip >= layers) {
      return absl::InvalidArgumentError(
          absl::StrCat("clip_skip is ", o.clip_skip, "; valid for this model is 0 to ", layers - 1));
    }
    for (const int32_t layer : o.skip_layers.layers) {
      if (layer < 0 || layer >= config_.layers) {
        return absl::InvalidArgumentError(
            absl::StrCat("skip_layers has ", layer, "; valid for this model is 0 to ", config_.layers - 1));
      }
    }

    EncodedPrompt encoded{.cached = true};
    const bool guided = request.guidance_scale > 1;
    const GuidanceWeights weights = ClassifierFreeGuidance(request.guidance_scale);
    std::vector<GuidanceBranch>& branches = encoded.guidance.branches;
    if (guided) {
      absl::StatusOr<ConditioningRow> row =
          Row({request.negative_prompt.value_or(""), o.negative_prompt_2, o.negative_prompt_3, request.adapters},
              "negative prompt",
              /*clip_skip=*/0, request.max_sequence_length, context, encoded);
      if (!row.ok()) return row.status();
      branches.push_back({.row = *std::move(row), .terms = {{.weight = weights.negative}}});
    }
    ASSIGN_OR_RETURN(ConditioningRow row, Row({request.prompt, o.prompt_2, o.prompt_3, request.adapters}, "prompt",
                                              o.clip_skip, request.max_sequence_length, context, encoded));
    branches.push_back({.row = row, .terms = {{.weight = guided ? weights.positive : 1}}});
    if (const control::SkipLayerGuidance& skip = o.skip_layers; guided && !skip.layers.empty()) {
      branches.back().terms.push_back({.weight = skip.scale, .start = skip.start, .stop = skip.stop});
      branches.push_back({.row = std::move(row),
                          .terms = {{.weight = -skip.scale, .start = skip.start, .stop = skip.stop}},
                          .skipped_blocks = {skip.layers.begin(), skip.layers.end()}});
    }
    return encoded;
  }

 protected:
  OriginalNames original_names() const override { return kOriginalNames; }

 private:
  struct Texts {
    const std::string& first;
    const std::string &second, &third;  // empty: same as `first`
    const SharedAdapters& adapters;
  };

  // Returns the states of one prompt: CLIP's two concatenated along the features and zero-padded to T5's width,
  // followed by T5's tokens.
  absl::StatusOr<ConditioningRow> Row(const Texts& texts, const char* field, int64_t clip_skip, int64_t t5_tokens,
                                      const parallel::ForwardContext& context, EncodedPrompt& encoded) {
    const auto clip = [&](size_t stage, const std::string& prompt) {
      return EncodeText(stage,
                        {.text = prompt,
                         .field = field,
                         .max_length = text(kClipL).full_length(),  // used for both, as in the reference
                         .plan = {.padding = TextPadding::kAttended, .states = {-2 - clip_skip}},
                         .adapters = texts.adapters},
                        context, encoded);
    };
    const auto or_first = [&](const std::string& other) -> const std::string& {
      return other.empty() ? texts.first : other;
    };
    ASSIGN_OR_RETURN(EncodedText l, clip(kClipL, texts.first));
    ASSIGN_OR_RETURN(EncodedText g, clip(kClipG, or_first(texts.second)));
    const at::Tensor both = at::cat({l.hidden, g.hidden}, 1);  // [tokens, widths]
    const at::Tensor padded = at::constant_pad_nd(both, {0, config_.text_width - both.size(1)});
    encoded.prompt_tokens = l.tokens;
    // Without T5 its tokens are zeros, which are attended to nevertheless.
    at::Tensor t5 = at::zeros({t5_tokens, config_.text_width}, padded.options());
    if (has_t5_) {
      ASSIGN_OR_RETURN(EncodedText states, EncodeText(kT5,
                                                      {.text = or_first(texts.third),
                                                       .field = field,
                                                       .max_length = t5_tokens,
                                                       .plan = {.padding = TextPadding::kAttended}},
                                                      context, encoded));
      t5 = states.hidden;
      encoded.prompt_tokens = states.tokens;
    }
    return ConditioningRow{.text = at::cat({padded, t5}), .extras = {at::cat({l.pooled, g.pooled})}};
  }

  Sd3Config config_;
  bool has_t5_;
};

}  // namespace

absl::StatusOr<FamilyDescription> DescribeSd3(const ModelFolder& folder) {
  ASSIGN_OR_RETURN(Sd3Configs configs, ReadConfigs(folder));
  const Sd3Config& transformer = configs.transformer;
  FamilyDescription description;
  const int64_t largest = transformer.position_side * transformer.patch * configs.autoencoder.factor;
  DescribeSizes(configs.autoencoder, transformer.patch, transformer.sample_size, std::min(kMaxSide, largest),
                description);
  description.default_steps = kSteps;
  description.pictures = control::kStartsFromPicture;
  description.default_guidance_scale = kGuidanceScale;
  description.default_max_sequence_length = kDefaultTokens;
  description.max_sequence_length = kMaxTokens;
  description.heads = transformer.heads;
  description.blocks = transformer.layers;
  const int64_t features = transformer.patch * transformer.patch * transformer.channels;
  description.exchange = {.width = transformer.width(),
                          .output_features = features,
                          .prediction_features = features,
                          .blocks = {},
                          .long_skips = {}};
  for (int64_t i = 0; i < transformer.layers; ++i) {
    description.exchange.blocks.push_back({.kind = parallel::BlockKind::kJoint,
                                           .second_attention = transformer.dual_layers.contains(i),
                                           .text_ends = i + 1 == transformer.layers});
  }
  description.options = {control::prompt_option::kPrompt2, control::prompt_option::kClipSkip,
                         control::prompt_option::kSkipLayers};
  if (configs.texts.size() > kT5)
    description.options.insert(description.options.begin() + 1, control::prompt_option::kPrompt3);
  DescribeStepCost(/*mlp_ratio=*/4, kClipTokens, description);
  DescribeParameters<Sd3Transformer>(folder, configs, kOriginalNames, description);
  return description;
}

absl::StatusOr<std::unique_ptr<Family>> LoadSd3(const ModelFolder& folder, const LoadOptions& options) {
  return OpenFamily<Sd3Family>(folder, ReadConfigs(folder), options);
}

}  // namespace tessera::models
