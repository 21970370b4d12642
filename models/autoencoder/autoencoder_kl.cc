#include "models/autoencoder/autoencoder_kl.h"

#include <utility>
#include <vector>

#include "base/macros/status_macros.h"
#include "models/layers/linear.h"

namespace tessera::models {
namespace {

// Early files name the matrices query, key, value and proj_attn.
void AddAttention(const ParamScope& scope, int64_t width, int64_t groups, ImageNetwork& network) {
  auto norm = std::make_unique<GroupNorm>(scope / "group_norm", width, groups);
  const auto product = [](Linear linear) -> ImageNetwork::Product {
    return [linear = std::move(linear)](const at::Tensor& tokens, const parallel::ForwardContext& context) {
      return linear.Forward(tokens, context);
    };
  };
  Linear qkv(scope, width, {{"to_q", width, {"query"}}, {"to_k", width, {"key"}}, {"to_v", width, {"value"}}});
  Linear out(scope, width, {{"to_out.0", width, {"proj_attn"}}});
  network.AddAttention(std::move(norm), product(std::move(qkv)), product(std::move(out)));
}

void AddMiddle(const AutoencoderConfig& config, const ParamScope& scope, int64_t width, ImageNetwork& network) {
  network.AddResidual(scope / "resnets" / 0, width, width);
  if (config.mid_attention) AddAttention(scope / "attentions" / 0, width, config.groups, network);
  network.AddResidual(scope / "resnets" / 1, width, width);
}

ImageNetwork::Style StyleOf(const AutoencoderConfig& config) {
  return {.norm = [groups = config.groups](const ParamScope& scope, int64_t channels) {
    return std::make_unique<GroupNorm>(scope, channels, groups);
  }};
}

// From the finest level to the coarsest.
ImageNetwork MakeEncoder(const AutoencoderConfig& config, const ParamScope& root) {
  const ParamScope scope = root / "encoder";
  const int64_t levels = static_cast<int64_t>(config.widths.size()), moments = 2 * config.latent_channels;
  ImageNetwork network(StyleOf(config));
  int64_t width = config.widths.front();
  network.AddConv(scope / "conv_in", config.image_channels, width);
  for (int64_t i = 0; i < levels; ++i) {
    const ParamScope level = scope / "down_blocks" / i;
    for (int64_t r = 0; r < config.layers_per_block; ++r) {
      network.AddResidual(level / "resnets" / r, width, config.widths[i]);
      width = config.widths[i];
    }
    if (i + 1 < levels) network.AddResampling(level / "downsamplers.0.conv", width, width, Resample::kDown);
  }
  AddMiddle(config, scope / "mid_block", width, network);
  network.AddConv(scope / "conv_out", width, moments, /*kernel=*/3, scope / "conv_norm_out");
  if (config.quant_conv) network.AddConv(root / "quant_conv", moments, moments, /*kernel=*/1);
  return network;
}

// From the coarsest level to the finest, with one more residual block per level than the encoder.
ImageNetwork MakeDecoder(const AutoencoderConfig& config, const ParamScope& root) {
  const ParamScope scope = root / "decoder";
  const std::vector<int64_t>& widths = config.widths_of_decoder();
  const int64_t levels = static_cast<int64_t>(widths.size()), latents = config.latent_channels;
  ImageNetwork network(StyleOf(config));
  int64_t width = widths.back();
  if (config.post_quant_conv) network.AddConv(root / "post_quant_conv", latents, latents, /*kernel=*/1);
  network.AddConv(scope / "conv_in", latents, width);
  AddMiddle(config, scope / "mid_block", width, network);
  for (int64_t i = 0; i < levels; ++i) {
    const ParamScope level = scope / "up_blocks" / i;
    const int64_t out = widths[levels - 1 - i];
    for (int64_t r = 0; r <= config.layers_per_block; ++r) {
      network.AddResidual(level / "resnets" / r, width, out);
      width = out;
    }
    if (i + 1 < levels) network.AddResampling(level / "upsamplers.0.conv", width, width, Resample::kUp);
  }
  network.AddConv(scope / "conv_out", width, config.image_channels, /*kernel=*/3, scope / "conv_norm_out");
  return network;
}

ImageCodecConfig CodecOf(const AutoencoderConfig& config) {
  return {.latent_channels = config.latent_channels * config.patch * config.patch,
          .factor = config.factor() * config.patch,
          .make = [config](ParamTable& table) { return MakeAutoencoderKl(config, table); },
          .describe_decoding = [config](control::ModelCost& cost) { DescribeDecoding(DecoderOf(config), cost); }};
}

}  // namespace

std::unique_ptr<Autoencoder> MakeAutoencoderKl(const AutoencoderConfig& config, ParamTable& table) {
  const ParamScope root(table);
  LatentNorm norm(config.shift_factor, config.scaling_factor);
  if (config.batch_norm_eps) {
    norm = LatentNorm(root / "bn", config.latent_channels * config.patch * config.patch, *config.batch_norm_eps);
    table.IgnoreInFile("bn.num_batches_tracked");  // counts training steps
  }
  return std::make_unique<Autoencoder>(AutoencoderParts{.encoder = MakeEncoder(config, root),
                                                        .decoder = MakeDecoder(config, root),
                                                        .norm = std::move(norm),
                                                        .factor = config.factor(),
                                                        .patch = config.patch,
                                                        .encodes_mean_only = config.batch_norm_eps.has_value()});
}

absl::StatusOr<ImageCodecConfig> ReadAutoencoderKl(base::ConfigReader& reader) {
  ASSIGN_OR_RETURN(const AutoencoderConfig config, ParseAutoencoderConfig(reader));
  return CodecOf(config);
}

absl::StatusOr<ImageCodecConfig> ReadAutoencoderKlFlux2(base::ConfigReader& reader) {
  ASSIGN_OR_RETURN(const AutoencoderConfig config, ParseFlux2AutoencoderConfig(reader));
  return CodecOf(config);
}

}  // namespace tessera::models
