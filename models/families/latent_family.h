// LatentFamily implements what the families share: a transformer over patches of an autoencoder's latents, conditioned
// on the states of text encoders.
#pragma once

#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/macros/status_macros.h"
#include "models/families/family.h"
#include "models/families/family_description.h"
#include "models/families/text_stage.h"
#include "models/loading/brought_transformer.h"
#include "models/loading/component.h"
#include "models/loading/load_options.h"
#include "models/loading/streamed_transformer.h"

namespace tessera::models {

// Returns InvalidArgument unless the two values are equal. `left` and `right` name the file and field of each.
absl::Status CheckEqual(const std::string& left, int64_t a, const std::string& right, int64_t b);

// The configurations that a family reads from a model's folder.
template <class TransformerConfig>
struct FamilyConfigs {
  TransformerConfig transformer;
  std::vector<TextStageConfig> texts;  // text_encoder, text_encoder_2, …
  ImageCodecConfig autoencoder;
  std::vector<std::string> warnings;
};

// Reads the configurations of a transformer of one of these classes, of `texts` text encoders and of an autoencoder.
template <class TransformerConfig>
absl::Status ReadFamilyConfigs(const ModelFolder& folder, std::initializer_list<std::string_view> classes,
                               absl::StatusOr<TransformerConfig> (*parse)(base::ConfigReader&), size_t texts,
                               FamilyConfigs<TransformerConfig>& configs) {
  for (const std::string suffix : {"", "_2", "_3"}) {
    if (configs.texts.size() == texts) break;
    ASSIGN_OR_RETURN(TextStageConfig text,
                     ReadTextStage(folder, "tokenizer" + suffix, "text_encoder" + suffix, configs.warnings));
    configs.texts.push_back(std::move(text));
  }
  RETURN_IF_ERROR(CheckClass(folder, "transformer", classes));
  ASSIGN_OR_RETURN(const ImageCodecEntry* codec, FindImageCodec(folder, "vae"));
  RETURN_IF_ERROR(ReadConfig(folder, "transformer", parse, configs.transformer, configs.warnings));
  return ReadConfig(folder, "vae", codec->read, configs.autoencoder, configs.warnings);
}

template <class Model, class Config>
Component<Transformer>::Make TransformerOf(const Config& config) {
  return [config](ParamTable& table) { return std::make_unique<Model>(config, table); };
}

class LatentFamily : public Family {
 public:
  const Transformer& transformer() const override {
    if (streamed_ != nullptr) return *streamed_;
    return brought_ != nullptr ? *brought_ : transformer_.model();
  }
  at::ScalarType dtype() const override { return options_.dtype; }
  at::Device device() const override { return options_.device; }
  int64_t weight_bytes() const override;
  std::span<const Param> parameters() const override { return transformer_.params(); }
  void KeepWeightsIn(std::shared_ptr<WeightResidency> residency) override;
  WeightResidency* residency() const override { return brought_ != nullptr ? brought_->residency() : nullptr; }
  AdaptableModel adaptable() const override;
  int64_t EncodeAhead(absl::Span<const PromptRequest> requests, const parallel::ForwardContext& context) override;
  void HoldEncoders(bool held) override;
  LatentGeometry Geometry(int64_t height, int64_t width) const override;
  at::Tensor ToPatches(const at::Tensor& latents) const override;
  // Drops the second half of the channels if it is a learned variance: no sampler reads it.
  at::Tensor ToPrediction(const at::Tensor& output, const LatentGeometry& geometry) const override;
  absl::StatusOr<at::Tensor> Decode(const at::Tensor& latents, const parallel::ForwardContext& context) override;
  absl::StatusOr<LatentPosterior> EncodeImage(const at::Tensor& image,
                                              const parallel::ForwardContext& context) override;

  // Loads every component that is to stay in memory and checks the others. On the meta device it does neither, and
  // Encode returns the sizes of its results, and its warnings.
  absl::Status Open();

 protected:
  // `patch` is the number of latents per token along one side; `texts` are in the order of their component names.
  LatentFamily(const ModelFolder& folder, const LoadOptions& options, const ImageCodecConfig& autoencoder,
               int64_t patch, std::vector<TextStageConfig> texts, const Component<Transformer>::Make& make_transformer);

  virtual OriginalNames original_names() const { return OriginalNames::kNone; }

  TextStage& text(size_t index) { return *texts_[index]; }
  const LoadOptions& options() const { return options_; }

  // Encodes a text with stage `index` and adds its warnings to `encoded`.
  absl::StatusOr<EncodedText> EncodeText(size_t index, const TextCall& call, const parallel::ForwardContext& context,
                                         EncodedPrompt& encoded);

 private:
  LoadOptions options_;
  ImageCodecConfig autoencoder_config_;
  int64_t patch_;
  std::shared_ptr<PromptCache> cache_;
  std::vector<std::unique_ptr<TextStage>> texts_;
  std::optional<size_t> running_text_;                      // if set, the only stage that may run its encoder
  Component<Transformer> transformer_;                      // without blocks if they are streamed
  std::unique_ptr<StreamedTransformer> streamed_;           // null if the blocks are kept in memory
  Component<Transformer>::SharedWeights streamed_weights_;  // the files that blocks are read from, opened once
  std::unique_ptr<BroughtTransformer> brought_;             // set if the model is loaded for training or blocks wait
  Component<ImageCodec> autoencoder_;
};

// Constructs a family from its configurations and loads its weights.
template <class LoadedFamily, class Configs>
absl::StatusOr<std::unique_ptr<Family>> OpenFamily(const ModelFolder& folder, const absl::StatusOr<Configs>& configs,
                                                   const LoadOptions& options) {
  RETURN_IF_ERROR(configs.status());
  auto family = std::make_unique<LoadedFamily>(folder, *configs, options);
  RETURN_IF_ERROR(family->Open());
  return family;
}

// Fills in the fields of a description and its cost that depend only on the autoencoder and the patch size.
void DescribeSizes(const ImageCodecConfig& autoencoder, int64_t patch, int64_t default_latent_side, int64_t max_side,
                   FamilyDescription& description);

// Describes a transformer whose blocks are all of one kind. It reads `channels` per latent and returns `out_channels`,
// which include these.
template <class Config>
void DescribeBlocks(const Config& config, parallel::BlockKind kind, int64_t channels, FamilyDescription& description) {
  const int64_t latents = config.patch * config.patch;  // per token and channel
  description.heads = config.heads;
  description.blocks = config.layers;
  description.exchange = {
      .width = config.width(),
      .output_features = latents * config.out_channels,
      .prediction_features = latents * channels,
      .blocks = std::vector<parallel::BlockExchange>(static_cast<size_t>(config.layers), {.kind = kind}),
      .long_skips = {}};
}

// Fills in what is known about the model's parameters without their values: their sizes, the products that adapters can
// apply to, and a warning for each component whose weight files contain tensors of no parameter. Reads only headers.
void DescribeComponents(const ModelFolder& folder, const Component<Transformer>::Make& make_transformer,
                        const std::vector<TextStageConfig>& texts, const ImageCodecConfig& autoencoder,
                        FamilyDescription& description);
template <class Model, class Configs>
void DescribeParameters(const ModelFolder& folder, const Configs& configs, OriginalNames originals,
                        FamilyDescription& description) {
  description.warnings = configs.warnings;
  description.adaptable.originals = originals;
  DescribeComponents(folder, TransformerOf<Model>(configs.transformer), configs.texts, configs.autoencoder,
                     description);
}

// Fills in what a step costs: that of each block of `description.exchange` at the default size, and the cost of the
// whole. `fixed_text_tokens` are those that do not depend on the length of a prompt; `mlp_ratio` is that of BlockCost.
void DescribeStepCost(double mlp_ratio, int64_t fixed_text_tokens, FamilyDescription& description);

}  // namespace tessera::models
