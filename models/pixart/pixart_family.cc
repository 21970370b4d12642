#include "models/pixart/pixart_family.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "models/autoencoder/autoencoder.h"
#include "models/guidance.h"
#include "models/pixart/caption_cleaning.h"
#include "models/pixart/pixart_transformer.h"
#include "models/pixart/resolution_bins.h"
#include "models/precision.h"
#include "models/text_encoders/t5_encoder.h"
#include "models/tokenizers/t5_tokenizer.h"
#include "models/weight_loader.h"

namespace tessera {
namespace {

// The reference pipelines' defaults.
constexpr int64_t kSteps = 20;
constexpr double kGuidanceScale = 4.5;
constexpr int64_t kAlphaTokens = 120, kSigmaTokens = 300;
constexpr int64_t kMaxTokens = 4096;
constexpr int64_t kMaxSide = 8192;

struct PixArtConfigs {
  PixArtConfig transformer;
  T5Config text_encoder;
  AutoencoderConfig autoencoder;
  bool sigma = false;  // which of the two pipelines: their default lengths and tables of sizes differ
  std::vector<std::string> warnings;

  int64_t size_multiple() const { return autoencoder.factor() * transformer.patch; }
  PixArtVariant variant() const { return sigma ? PixArtVariant::kSigma : PixArtVariant::kAlpha; }
};

template <class Config>
absl::Status Read(const ModelFolder& folder, const char* component, absl::StatusOr<Config> (*parse)(ConfigReader&),
                  Config& config, std::vector<std::string>& warnings) {
  absl::StatusOr<ConfigReader> reader = folder.Config(component);
  if (!reader.ok()) return reader.status();
  absl::StatusOr<Config> parsed = parse(*reader);
  if (!parsed.ok()) return parsed.status();
  config = *std::move(parsed);
  for (const std::string& field : reader->UnknownFields()) {
    warnings.push_back(absl::StrCat(reader->name(), ": the field ", field, " is unknown and was not used"));
  }
  return absl::OkStatus();
}

absl::StatusOr<PixArtConfigs> ReadConfigs(const ModelFolder& folder) {
  PixArtConfigs configs;
  configs.sigma = folder.class_name() == "PixArtSigmaPipeline";
  for (const absl::Status& status :
       {Read(folder, "transformer", ParsePixArtConfig, configs.transformer, configs.warnings),
        Read(folder, "text_encoder", ParseT5Config, configs.text_encoder, configs.warnings),
        Read(folder, "vae", ParseAutoencoderConfig, configs.autoencoder, configs.warnings)}) {
    if (!status.ok()) return status;
  }
  const auto conflict = [](const char* left, int64_t a, const char* right, int64_t b) {
    return absl::InvalidArgumentError(absl::StrCat(left, " is ", a, " and ", right, " is ", b, "; they must be equal"));
  };
  if (configs.transformer.caption_channels != configs.text_encoder.width) {
    return conflict("transformer/config.json: caption_channels", configs.transformer.caption_channels,
                    "text_encoder/config.json: d_model", configs.text_encoder.width);
  }
  if (configs.transformer.in_channels != configs.autoencoder.latent_channels) {
    return conflict("transformer/config.json: in_channels", configs.transformer.in_channels,
                    "vae/config.json: latent_channels", configs.autoencoder.latent_channels);
  }
  return configs;
}

template <class Model, class Config>
absl::Status Load(const ModelFolder& folder, const std::string& component, const Config& config,
                  const LoadOptions& options, std::unique_ptr<Model>& model, int64_t& bytes) {
  absl::StatusOr<WeightFolder> weights = folder.Weights(component);
  if (!weights.ok()) return weights.status();
  ParamTable table(options.dtype, options.device);
  model = std::make_unique<Model>(config, table);
  bytes += table.bytes();
  if (absl::Status loaded = LoadWeights(*weights, table, component); !loaded.ok()) return loaded;
  table.PackForInference();
  return absl::OkStatus();
}

absl::StatusOr<T5Tokenizer> LoadTokenizer(const ModelFolder& folder) {
  const absl::StatusOr<std::string> path = folder.ComponentPath("tokenizer");
  return path.ok() ? T5Tokenizer::Load(*path) : path.status();
}

class PixArtFamily final : public Family {
 public:
  PixArtFamily(PixArtConfigs configs, LoadOptions options, T5Tokenizer tokenizer)
      : configs_(std::move(configs)), options_(options), tokenizer_(std::move(tokenizer)) {}

  absl::Status LoadComponents(const ModelFolder& folder) {
    for (const absl::Status& status :
         {Load(folder, "text_encoder", configs_.text_encoder, options_, text_encoder_, weight_bytes_),
          Load(folder, "transformer", configs_.transformer, options_, transformer_, weight_bytes_),
          Load(folder, "vae", configs_.autoencoder, options_, autoencoder_, weight_bytes_)}) {
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  const Transformer& transformer() const override { return *transformer_; }
  at::ScalarType dtype() const override { return options_.dtype; }
  at::Device device() const override { return options_.device; }
  int64_t weight_bytes() const override { return weight_bytes_; }

  ImageSize BinnedSize(ImageSize requested) const override {
    const BinnedImageSize size = ClassifySize(requested.height, requested.width,
                                              *BinTable(configs_.variant(), configs_.transformer.sample_size));
    return {.height = size.height, .width = size.width};
  }

  LatentGeometry Geometry(int64_t height, int64_t width) const override {
    const int64_t factor = configs_.autoencoder.factor(), patch = configs_.transformer.patch;
    return {.channels = configs_.autoencoder.latent_channels,
            .height = height / factor,
            .width = width / factor,
            .grid = {.height = height / factor / patch, .width = width / factor / patch}};
  }

  absl::StatusOr<EncodedPrompt> Encode(const PromptRequest& request, const ForwardContext& context) const override {
    EncodedPrompt encoded;
    const bool guided = request.guidance_scale > 1;
    const GuidanceWeights weights = ClassifierFreeGuidance(request.guidance_scale);
    if (guided) {
      absl::Status added =
          AddBranch(request.negative_prompt, "negative prompt", weights.negative, request, context, encoded);
      if (!added.ok()) return added;
    }
    absl::Status added = AddBranch(request.prompt, "prompt", guided ? weights.positive : 1, request, context, encoded);
    if (!added.ok()) return added;
    return encoded;
  }

  at::Tensor ToPatches(const at::Tensor& latents) const override {
    return Patchify(latents, configs_.transformer.patch);
  }

  at::Tensor ToPrediction(const at::Tensor& output, const LatentGeometry& geometry) const override {
    // The second half of the channels, where there is one, is the learned variance: no sampler reads it.
    return Unpatchify(output, geometry.grid, configs_.transformer.patch).narrow(1, 0, geometry.channels);
  }

  at::Tensor Decode(const at::Tensor& latents, const ForwardContext& context) const override {
    return autoencoder_->Decode(latents.to(options_.dtype), context).to(IslandType(options_.dtype));
  }

 private:
  // Encodes one prompt and appends its branch.
  absl::Status AddBranch(const std::string& text, const char* field, double weight, const PromptRequest& request,
                         const ForwardContext& context, EncodedPrompt& encoded) const {
    const std::string caption = request.clean_caption ? CleanCaption(text) : PlainCaption(text);
    absl::StatusOr<TokenIds> ids = tokenizer_.Encode(caption, request.max_sequence_length, field);
    if (!ids.ok()) return ids.status();
    for (const int64_t id : ids->ids) {
      if (id >= configs_.text_encoder.vocabulary) {
        return absl::InvalidArgumentError(
            absl::StrCat("tokenizer: it makes token ", id, ", and text_encoder/config.json has a vocab_size of ",
                         configs_.text_encoder.vocabulary, "; the two do not belong together"));
      }
    }
    if (ids->truncated) {
      encoded.warnings.push_back(absl::StrCat("the ", field, " has ", ids->tokens_before_truncation,
                                              " tokens and was cut to ", request.max_sequence_length,
                                              "; not read: ", Quote(ids->cut_text)));
    }
    const int64_t count = static_cast<int64_t>(ids->ids.size());
    const at::Tensor tensor = at::tensor(ids->ids, at::kLong).reshape({1, count}).to(options_.device);
    GuidanceBranch branch{.text = {.tokens = text_encoder_->Forward(tensor, {}, context).squeeze(0)}, .weight = weight};
    if (configs_.transformer.additional_conditions && configs_.transformer.sample_size == 128) {
      const double height = static_cast<double>(request.height), width = static_cast<double>(request.width);
      branch.text.size_condition =
          at::tensor({height, width, height / width}, at::kDouble).to(IslandType(options_.dtype)).to(options_.device);
    }
    encoded.branches.push_back(std::move(branch));
    encoded.prompt_tokens = count;  // the positive prompt comes last
    return absl::OkStatus();
  }

  PixArtConfigs configs_;
  LoadOptions options_;
  T5Tokenizer tokenizer_;
  std::unique_ptr<T5Encoder> text_encoder_;
  std::unique_ptr<PixArtTransformer> transformer_;
  std::unique_ptr<Autoencoder> autoencoder_;
  int64_t weight_bytes_ = 0;
};

}  // namespace

absl::StatusOr<FamilyDescription> DescribePixArt(const ModelFolder& folder) {
  absl::StatusOr<PixArtConfigs> configs = ReadConfigs(folder);
  if (!configs.ok()) return configs.status();
  absl::StatusOr<T5Tokenizer> tokenizer = LoadTokenizer(folder);
  if (!tokenizer.ok()) return tokenizer.status();
  FamilyDescription description;
  description.size_multiple = configs->size_multiple();
  description.max_size = kMaxSide / description.size_multiple * description.size_multiple;
  description.default_height = configs->transformer.sample_size * configs->autoencoder.factor();
  description.default_width = description.default_height;
  description.default_steps = kSteps;
  description.default_guidance_scale = kGuidanceScale;
  description.can_bin = BinTable(configs->variant(), configs->transformer.sample_size).has_value();
  description.default_resolution_binning = description.can_bin;
  description.default_clean_caption = true;
  description.default_max_sequence_length =
      std::min(configs->sigma ? kSigmaTokens : kAlphaTokens, tokenizer->model_max_length());
  description.max_sequence_length = kMaxTokens;
  description.heads = configs->transformer.heads;
  description.blocks = configs->transformer.layers;
  description.warnings = configs->warnings;
  return description;
}

absl::StatusOr<std::unique_ptr<Family>> LoadPixArt(const ModelFolder& folder, const LoadOptions& options) {
  absl::StatusOr<PixArtConfigs> configs = ReadConfigs(folder);
  if (!configs.ok()) return configs.status();
  absl::StatusOr<T5Tokenizer> tokenizer = LoadTokenizer(folder);
  if (!tokenizer.ok()) return tokenizer.status();
  auto family = std::make_unique<PixArtFamily>(*std::move(configs), options, *std::move(tokenizer));
  if (absl::Status loaded = family->LoadComponents(folder); !loaded.ok()) return loaded;
  return family;
}

}  // namespace tessera
