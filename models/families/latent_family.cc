#include "models/families/latent_family.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/macros/status_macros.h"
#include "models/families/family_description.h"
#include "models/families/prompt_request.h"
#include "models/finite.h"
#include "models/loading/load_options.h"
#include "models/loading/weight_sizes.h"
#include "models/precision.h"

namespace tessera::models {
namespace {

WeightShare ShareOf(const LoadOptions& options) {
  return {.tensor = options.share.tensor,
          .blocks = options.placement.stream_blocks ? BlockShare{.begin = 0, .end = 0} : options.share.blocks,
          .waiting = options.share.waiting,
          .conditioning_waits = options.for_training,
          .block_buffers = options.share.block_buffers,
          .memory = options.waiting_memory,
          .offloaded = options.for_training ? Offloaded::kNone : std::min(options.offload, Offloaded::kModulations)};
}

}  // namespace

absl::Status CheckEqual(const std::string& left, int64_t a, const std::string& right, int64_t b) {
  if (a == b) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(left, " is ", a, " and ", right, " is ", b, "; they must be equal"));
}

LatentFamily::LatentFamily(const ModelFolder& folder, const LoadOptions& options, const ImageCodecConfig& autoencoder,
                           int64_t patch, std::vector<TextStageConfig> texts,
                           const Component<Transformer>::Make& make_transformer)
    : options_(options),
      autoencoder_config_(autoencoder),
      patch_(patch),
      cache_(std::make_shared<PromptCache>(options.prompt_cache_bytes)),
      transformer_(folder, "transformer", make_transformer, options.dtype, options.device,
                   control::ComponentPlacement::kRank0, ShareOf(options), options.placement.weights,
                   options.placement.products, options.for_training, options.quantize),
      autoencoder_(folder, "vae", autoencoder.make, options.dtype, options.device,
                   control::PlacementOf(options.placement.autoencoder),
                   {.parked = options.offload == Offloaded::kAll, .memory = options.waiting_memory}) {
  if (options.placement.stream_blocks) {
    const auto read_block = [this, folder, options, make_transformer](int index) {
      WeightShare share = options.share;
      share.blocks = {.begin = index, .end = index + 1};
      Component<Transformer> block(folder, "transformer", make_transformer, options.dtype, options.device,
                                   control::ComponentPlacement::kRank0, share, options.placement.weights,
                                   options.placement.products);
      block.ReadFrom(streamed_weights_);
      if (const absl::Status opened = block.Open(); !opened.ok()) {
        throw std::runtime_error(std::string(opened.message()));
      }
      return block.Take();
    };
    streamed_ = std::make_unique<StreamedTransformer>(transformer_, read_block);
  }
  for (TextStageConfig& text : texts) {
    texts_.push_back(std::make_unique<TextStage>(folder, std::move(text), options, cache_));
  }
}

absl::Status LatentFamily::Open() {
  if (options_.device.is_meta()) return absl::OkStatus();
  if (options_.for_training && options_.placement.stream_blocks) {
    return absl::InvalidArgumentError("a model whose blocks are streamed from its files cannot be trained");
  }
  if (options_.encodes_prompts) {
    for (const std::unique_ptr<TextStage>& text : texts_) {
      RETURN_IF_ERROR(text->Open());
    }
  }
  if (streamed_ != nullptr) {
    // The header of a large file and the names of its tensors take a considerable part of the time that a block takes.
    ASSIGN_OR_RETURN(streamed_weights_, transformer_.OpenWeights());
    RETURN_IF_ERROR(transformer_.Check());
  }
  RETURN_IF_ERROR(transformer_.Open());
  if (options_.for_training || transformer_.residency() != nullptr) {
    brought_ = std::make_unique<BroughtTransformer>(transformer_.model());
    brought_->KeepWeightsIn(transformer_.residency());
  }
  return autoencoder_.Open();
}

void LatentFamily::KeepWeightsIn(std::shared_ptr<WeightResidency> residency) {
  TORCH_CHECK(options_.for_training, "only the weights of a model that was loaded for training can be moved");
  brought_->KeepWeightsIn(std::move(residency));
}

int64_t LatentFamily::weight_bytes() const {
  int64_t bytes = transformer_.weight_bytes() + autoencoder_.weight_bytes();
  for (const std::unique_ptr<TextStage>& text : texts_) bytes += text->weight_bytes();
  return bytes;
}

AdaptableModel LatentFamily::adaptable() const {
  AdaptableModel model{.originals = original_names()};
  model.components["transformer"] = transformer_.Products(options_.share);
  for (const std::unique_ptr<TextStage>& text : texts_) {
    if (text->takes_adapters()) model.components[text->component()] = text->Products();
  }
  return model;
}

LatentGeometry LatentFamily::Geometry(int64_t height, int64_t width) const {
  const int64_t factor = autoencoder_config_.factor;
  TokenGrid grid{.height = height / factor / patch_, .width = width / factor / patch_};
  grid.padding = PaddingOf(grid);
  return {.channels = autoencoder_config_.latent_channels,
          .height = height / factor,
          .width = width / factor,
          .grid = grid};
}

at::Tensor LatentFamily::ToPatches(const at::Tensor& latents) const { return Patchify(latents, patch_); }

at::Tensor LatentFamily::ToPrediction(const at::Tensor& output, const LatentGeometry& geometry) const {
  return Unpatchify(output, geometry.grid, patch_).narrow(1, 0, geometry.channels);
}

absl::StatusOr<at::Tensor> LatentFamily::Decode(const at::Tensor& latents, const parallel::ForwardContext& context) {
  absl::StatusOr<at::Tensor> image = autoencoder_.With([&](const ImageCodec& codec) {
    return codec.Decode(latents.to(autoencoder_.device(), options_.dtype), context);
  });
  if (!image.ok()) return image.status();
  RETURN_IF_ERROR(CheckFinite(*image, "the picture that the autoencoder decoded"));
  return image->to(options_.device, AccumulationType(options_.dtype));
}

absl::StatusOr<LatentPosterior> LatentFamily::EncodeImage(const at::Tensor& image,
                                                          const parallel::ForwardContext& context) {
  const at::ScalarType accumulated = AccumulationType(options_.dtype);
  const auto on_device = [&](const at::Tensor& tensor) { return tensor.to(options_.device, accumulated); };
  absl::StatusOr<LatentPosterior> latents = autoencoder_.With([&](const ImageCodec& codec) {
    const LatentPosterior posterior = codec.Encode(image.to(autoencoder_.device(), options_.dtype), context);
    return LatentPosterior{.mean = on_device(posterior.mean), .deviation = on_device(posterior.deviation)};
  });
  if (!latents.ok()) return latents.status();
  for (const at::Tensor& tensor : {latents->mean, latents->deviation}) {
    RETURN_IF_ERROR(CheckFinite(tensor, "what the autoencoder encoded a picture as"));
  }
  return latents;
}

absl::StatusOr<EncodedText> LatentFamily::EncodeText(size_t index, const TextCall& call,
                                                     const parallel::ForwardContext& context, EncodedPrompt& encoded) {
  if (!options_.encodes_prompts) return absl::FailedPreconditionError("prompts are encoded by another rank");
  if (running_text_.value_or(index) != index && !texts_[index]->IsCached(call)) {
    return absl::CancelledError("it is another encoder's turn");
  }
  absl::StatusOr<EncodedText> text = texts_[index]->Encode(call, context, encoded.cached);
  if (text.ok()) encoded.warnings.insert(encoded.warnings.end(), text->warnings.begin(), text->warnings.end());
  return text;
}

// Runs one encoder after the other, so that no two are in memory at the same time unless they are resident. A prompt is
// encoded up to its first text that belongs to another encoder. If its texts are not in the order of the encoders, the
// next round continues.
int64_t LatentFamily::EncodeAhead(absl::Span<const PromptRequest> requests, const parallel::ForwardContext& context) {
  const absl::Cleanup end = [this] { running_text_.reset(); };
  const auto encode = [&](absl::Span<const PromptRequest> prompts) {
    int64_t encoded = 0;
    for (const PromptRequest& prompt : prompts) encoded += Encode(prompt, context).ok();
    return encoded;
  };
  const auto count_cached = [&](absl::Span<const PromptRequest> prompts) {
    running_text_ = texts_.size();  // no encoder may run
    return encode(prompts);
  };
  // The bytes that the first prompt adds to the cache determine how many prompts fit.
  absl::Span<const PromptRequest> others = requests;
  const int64_t before = cache_->written();
  while (!others.empty() && cache_->written() == before) {
    encode(others.first(1));
    others.remove_prefix(1);
  }
  const int64_t bytes = cache_->written() - before;
  if (bytes == 0) return count_cached(requests);
  const int64_t room = std::max<int64_t>(cache_->max_bytes() / bytes - 1, 0);
  others = others.first(std::min(others.size(), static_cast<size_t>(room)));
  for (size_t round = 0; round < texts_.size(); ++round) {
    for (size_t index = 0; index < texts_.size(); ++index) {
      const absl::Cleanup drop = [&] { texts_[index]->Hold(false); };
      texts_[index]->Hold(true);
      running_text_ = index;
      encode(others);
    }
    if (count_cached(others) == static_cast<int64_t>(others.size())) break;
  }
  return count_cached(requests);
}

void LatentFamily::HoldEncoders(bool held) {
  for (const std::unique_ptr<TextStage>& text : texts_) text->Hold(held);
  autoencoder_.Hold(held);
  if (!held) cache_->Clear();
}

void DescribeSizes(const ImageCodecConfig& autoencoder, int64_t patch, int64_t default_latent_side, int64_t max_side,
                   FamilyDescription& description) {
  description.size_multiple = autoencoder.factor * patch;
  description.cost.token_side = static_cast<int32_t>(description.size_multiple);
  autoencoder.describe_decoding(description.cost);
  description.min_size = description.size_multiple;
  description.max_size = max_side / description.size_multiple * description.size_multiple;
  description.default_height = description.default_width = default_latent_side * autoencoder.factor;
}

void DescribeComponents(const ModelFolder& folder, const Component<Transformer>::Make& make_transformer,
                        const std::vector<TextStageConfig>& texts, const ImageCodecConfig& autoencoder,
                        FamilyDescription& description) {
  constexpr size_t kNamed = 3;
  const auto describe = [&](const std::string& component, control::ComponentRole role, bool takes_adapters,
                            const auto& make) {
    ParamTable table = SizingTable();
    make(table);
    if (takes_adapters) description.adaptable.components[component] = table.products();
    absl::StatusOr<WeightFolder> weights = folder.Weights(component);
    if (!weights.ok() || !NameWeights(*weights, table).ok()) return;  // Load reports the error
    description.weights.push_back(SizesOf(table, *weights, role));
    const std::vector<std::string> extra = ExtraTensors(*weights, table);
    if (extra.empty()) return;
    const auto named = extra.begin() + static_cast<std::ptrdiff_t>(std::min(extra.size(), kNamed));
    description.warnings.push_back(absl::StrCat(
        component, ": ", extra.size(), " tensors of its files belong to none of its parameters and are not used: ",
        absl::StrJoin(extra.begin(), named, ", "), extra.size() > kNamed ? ", …" : ""));
  };
  describe("transformer", control::ComponentRole::kTransformer, true, make_transformer);
  for (const TextStageConfig& text : texts) {
    describe(text.encoder, control::ComponentRole::kTextEncoder, text.config.takes_adapters, [&](ParamTable& table) {
      text.config.make(table);
      for (const ProductSpec& product : table.products()) {
        description.cost.encode_flops_per_token += 2 * static_cast<double>(product.out * product.in);
      }
    });
  }
  describe("vae", control::ComponentRole::kAutoencoder, false, autoencoder.make);
}

void DescribeStepCost(double mlp_ratio, int64_t fixed_text_tokens, FamilyDescription& description) {
  control::ModelCost& cost = description.cost;
  cost.fixed_text_tokens = static_cast<int32_t>(fixed_text_tokens);
  cost.text_tokens = static_cast<int32_t>(fixed_text_tokens + description.default_max_sequence_length);
  description.block_flops =
      control::SetTransformer(description.exchange, mlp_ratio,
                              {.height = description.default_height, .width = description.default_width}, cost);
}

}  // namespace tessera::models
