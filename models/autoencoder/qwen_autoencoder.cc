#include "models/autoencoder/qwen_autoencoder.h"

#include <utility>

#include "base/macros/status_macros.h"
#include "kernels/ops.h"
#include "models/autoencoder/channel_rms_norm.h"

namespace tessera::models {
namespace {

constexpr int64_t kOfVideos = 3, kOfImages = 2;  // dimensions after the channels in the shape of a norm's parameter

// A product that is stored as a convolution of images with 1 x 1 windows.
ImageNetwork::Product MakeProduct(const ParamScope& scope, int64_t in, int64_t out) {
  const at::Tensor weight = scope.Add("weight", {out, in, 1, 1}), bias = scope.Add("bias", {out});
  return [weight, bias](const at::Tensor& tokens, const parallel::ForwardContext& /*context*/) {
    return kernels::LinearProduct(tokens, weight.flatten(1), bias);
  };
}

void AddMiddle(const ParamScope& scope, int64_t width, ImageNetwork& network) {
  const ParamScope attention = scope / "attentions" / 0;
  network.AddResidual(scope / "resnets" / 0, width, width);
  auto norm = std::make_unique<ChannelRmsNorm>(attention / "norm", width, kOfImages);
  ImageNetwork::Product qkv = MakeProduct(attention / "to_qkv", width, 3 * width);
  network.AddAttention(std::move(norm), std::move(qkv), MakeProduct(attention / "proj", width, width));
  network.AddResidual(scope / "resnets" / 1, width, width);
}

ImageNetwork::Style StyleOfVideos() {
  return {.norm = [](const ParamScope& scope,
                     int64_t channels) { return std::make_unique<ChannelRmsNorm>(scope, channels, kOfVideos); },
          .causal = true};
}

// Resampling in time does nothing to the first frame of a video.
void IgnoreResamplingOfTime(const ParamScope& scope) {
  for (const char* leaf : {"weight", "bias"}) scope.table().IgnoreInFile((scope / "time_conv").Name(leaf));
}

// From the finest level to the coarsest. Residual blocks and reductions of all levels are numbered together.
ImageNetwork MakeEncoder(const QwenAutoencoderConfig& config, const ParamScope& root) {
  const ParamScope scope = root / "encoder";
  const int64_t moments = 2 * config.latent_channels;
  ImageNetwork network(StyleOfVideos());
  int64_t width = config.width, block = 0;
  network.AddConv(scope / "conv_in", config.image_channels, width);
  for (int64_t level = 0; level < config.levels(); ++level) {
    for (int64_t r = 0; r < config.residuals; ++r) {
      network.AddResidual(scope / "down_blocks" / block++, width, config.channels(level));
      width = config.channels(level);
    }
    if (level + 1 == config.levels()) break;
    const ParamScope reduction = scope / "down_blocks" / block++;
    network.AddResampling(reduction / "resample.1", width, width, Resample::kDown);
    if (config.halves_time[static_cast<size_t>(level)]) IgnoreResamplingOfTime(reduction);
  }
  AddMiddle(scope / "mid_block", width, network);
  network.AddConv(scope / "conv_out", width, moments, /*kernel=*/3, scope / "norm_out");
  network.AddConv(root / "quant_conv", moments, moments, /*kernel=*/1);
  return network;
}

// From the coarsest level to the finest.
ImageNetwork MakeDecoder(const QwenAutoencoderConfig& config, const ParamScope& root) {
  const ParamScope scope = root / "decoder";
  const int64_t coarsest = config.levels() - 1;
  ImageNetwork network(StyleOfVideos());
  network.AddConv(root / "post_quant_conv", config.latent_channels, config.latent_channels, /*kernel=*/1);
  network.AddConv(scope / "conv_in", config.latent_channels, config.channels(coarsest));
  AddMiddle(scope / "mid_block", config.channels(coarsest), network);
  for (int64_t level = coarsest; level >= 0; --level) {
    const ParamScope block = scope / "up_blocks" / (coarsest - level);
    const int64_t out = config.channels(level);
    for (int64_t r = 0; r <= config.residuals; ++r) {
      network.AddResidual(block / "resnets" / r, r == 0 ? config.decoder_input(level) : out, out);
    }
    if (level == 0) break;
    const ParamScope enlargement = block / "upsamplers.0";
    network.AddResampling(enlargement / "resample.1", out, out / 2, Resample::kUp);
    if (config.halves_time[static_cast<size_t>(level - 1)]) IgnoreResamplingOfTime(enlargement);
  }
  network.AddConv(scope / "conv_out", config.channels(0), config.image_channels, /*kernel=*/3, scope / "norm_out");
  return network;
}

}  // namespace

std::unique_ptr<Autoencoder> MakeQwenAutoencoder(const QwenAutoencoderConfig& config, ParamTable& table) {
  const ParamScope root(table);
  return std::make_unique<Autoencoder>(AutoencoderParts{.encoder = MakeEncoder(config, root),
                                                        .decoder = MakeDecoder(config, root),
                                                        .norm = LatentNorm(config.means, config.deviations),
                                                        .factor = config.factor(),
                                                        .clamps = true});
}

absl::StatusOr<ImageCodecConfig> ReadAutoencoderKlQwenImage(base::ConfigReader& reader) {
  ASSIGN_OR_RETURN(const QwenAutoencoderConfig config, ParseQwenAutoencoderConfig(reader));
  return ImageCodecConfig{
      .latent_channels = config.latent_channels,
      .factor = config.factor(),
      .make = [config](ParamTable& table) { return MakeQwenAutoencoder(config, table); },
      .describe_decoding = [config](control::ModelCost& cost) { DescribeDecoding(DecoderOf(config), cost); }};
}

}  // namespace tessera::models
