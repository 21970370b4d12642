#include <map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "base/macros/status_macros.h"
#include "models/dit/dit_transformer.h"
#include "models/families/families.h"
#include "models/families/family_description.h"
#include "models/families/guidance.h"
#include "models/families/latent_family.h"
#include "models/families/prompt_request.h"
#include "models/loading/load_options.h"

namespace tessera::models {
namespace {

// The reference pipeline's defaults.
constexpr int64_t kSteps = 50;
constexpr double kGuidanceScale = 4.0;

struct DitConfigs : FamilyConfigs<DitConfig> {
  std::map<std::string, int64_t> labels;  // class indices by name
};

// Parses id2label of model_index.json, which maps class indices to names; several names of one class are separated by
// commas.
absl::Status ReadLabels(const ModelFolder& folder, int64_t classes, std::map<std::string, int64_t>& labels) {
  const base::Json* id2label = folder.index().Find("id2label");
  if (id2label == nullptr) return absl::OkStatus();
  for (const base::JsonMember& member : id2label->members()) {
    int64_t id = -1;
    const std::string* names = member.value.AsString();
    if (!absl::SimpleAtoi(member.key, &id) || id < 0 || id >= classes || names == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat("model_index.json: id2label has ", base::Quote(member.key), ": ",
                                                     member.value.Describe(), "; it must map 0 to ", classes - 1,
                                                     " to names"));
    }
    for (const auto& name : absl::StrSplit(*names, ',')) {
      labels.emplace(std::string(absl::StripAsciiWhitespace(name)), id);
    }
    labels.emplace(*names, id);
  }
  return absl::OkStatus();
}

absl::StatusOr<DitConfigs> ReadConfigs(const ModelFolder& folder) {
  DitConfigs configs;
  RETURN_IF_ERROR(ReadFamilyConfigs(folder, {"DiTTransformer2DModel", "Transformer2DModel"}, ParseDitConfig,
                                    /*texts=*/0, configs));
  RETURN_IF_ERROR(CheckEqual("transformer/config.json: in_channels", configs.transformer.in_channels,
                             "vae/config.json: latent_channels", configs.autoencoder.latent_channels));
  RETURN_IF_ERROR(ReadLabels(folder, configs.transformer.classes, configs.labels));
  return configs;
}

class DitFamily final : public LatentFamily {
 public:
  DitFamily(const ModelFolder& folder, const DitConfigs& configs, const LoadOptions& options)
      : LatentFamily(folder, options, configs.autoencoder, configs.transformer.patch, {},
                     TransformerOf<DitTransformer>(configs.transformer)),
        classes_(configs.transformer.classes),
        labels_(configs.labels) {}

  bool masks_padding() const override { return false; }

  absl::StatusOr<EncodedPrompt> Encode(const PromptRequest& request, const parallel::ForwardContext&) override {
    if (!request.negative_prompt.value_or("").empty()) {
      return absl::InvalidArgumentError(
          "negative prompt is set; this model is conditioned on a class and has no negative prompt");
    }
    ASSIGN_OR_RETURN(const int64_t label, ClassOf(request.prompt));
    EncodedPrompt encoded{.cached = true};
    const auto add = [&](int64_t class_id, double weight) {
      const at::Tensor tensor = at::scalar_tensor(class_id, at::TensorOptions(at::kLong).device(options().device));
      encoded.guidance.branches.push_back({.row = {.extras = {tensor}}, .terms = {{.weight = weight}}});
    };
    const bool guided = request.guidance_scale > 1;
    const GuidanceWeights weights = ClassifierFreeGuidance(request.guidance_scale);
    add(label, guided ? weights.positive : 1);
    if (guided) add(classes_, weights.negative);
    return encoded;
  }

 private:
  absl::StatusOr<int64_t> ClassOf(const std::string& prompt) const {
    const std::string text(absl::StripAsciiWhitespace(prompt));
    if (const auto named = labels_.find(text); named != labels_.end()) return named->second;
    int64_t id = -1;
    if (absl::SimpleAtoi(text, &id) && id >= 0 && id < classes_) return id;
    return absl::InvalidArgumentError(absl::StrCat(
        "prompt is ", base::Quote(prompt), "; valid for this model is a class, 0 to ", classes_ - 1,
        labels_.empty() ? "" : " or its name, such as ", labels_.empty() ? "" : base::Quote(labels_.begin()->first)));
  }

  int64_t classes_;
  std::map<std::string, int64_t> labels_;
};

}  // namespace

absl::StatusOr<FamilyDescription> DescribeDit(const ModelFolder& folder) {
  ASSIGN_OR_RETURN(DitConfigs configs, ReadConfigs(folder));
  FamilyDescription description;
  const int64_t side = configs.transformer.sample_size * configs.autoencoder.factor;
  DescribeSizes(configs.autoencoder, configs.transformer.patch, configs.transformer.sample_size, side, description);
  description.min_size = side;  // images are square and of the size the model was trained at
  description.default_steps = kSteps;
  description.default_guidance_scale = kGuidanceScale;
  const DitConfig& transformer = configs.transformer;
  DescribeBlocks(transformer, parallel::BlockKind::kImage, transformer.in_channels, description);
  DescribeStepCost(/*mlp_ratio=*/4, /*fixed_text_tokens=*/0, description);
  DescribeParameters<DitTransformer>(folder, configs, OriginalNames::kNone, description);
  return description;
}

absl::StatusOr<std::unique_ptr<Family>> LoadDit(const ModelFolder& folder, const LoadOptions& options) {
  return OpenFamily<DitFamily>(folder, ReadConfigs(folder), options);
}

}  // namespace tessera::models
