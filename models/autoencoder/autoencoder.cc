#include "models/autoencoder/autoencoder.h"

#include <cmath>
#include <optional>

#include "kernels/ops.h"

namespace tessera {

struct Autoencoder::Residual {
  Residual(const ParamScope& scope, int64_t in, int64_t out, int64_t groups)
      : norm1(scope / "norm1", in, groups),
        norm2(scope / "norm2", out, groups),
        conv1(scope / "conv1", in, out),
        conv2(scope / "conv2", out, out) {
    if (in != out) shortcut.emplace(scope / "conv_shortcut", in, out, 1);
  }

  at::Tensor Forward(const at::Tensor& x, int64_t band_bytes) const {
    at::Tensor y = conv1.Forward(x, &norm1, band_bytes);
    y = conv2.Forward(y, &norm2, band_bytes);
    return y.add_(shortcut ? shortcut->Forward(x, nullptr, band_bytes) : x);
  }

  GroupNorm norm1, norm2;
  BandedConv conv1, conv2;
  std::optional<BandedConv> shortcut;
};

// Attention of one head over all pixels. Early files name its matrices query, key, value and proj_attn.
struct Autoencoder::Attention {
  Attention(const ParamScope& scope, int64_t width, int64_t groups)
      : norm(scope / "group_norm", width, groups),
        qkv(scope, width, {{"to_q", width, {"query"}}, {"to_k", width, {"key"}}, {"to_v", width, {"value"}}}),
        out(scope, width, {{"to_out.0", width, {"proj_attn"}}}) {}

  at::Tensor Forward(const at::Tensor& x, const ForwardContext& context, int64_t band_bytes) const {
    const at::Tensor tokens = norm.Measure(x, band_bytes).Apply(x).flatten(2).transpose(1, 2);  // [b, h·w, c]
    const std::vector<at::Tensor> parts = qkv.Forward(tokens, context).unsqueeze(2).chunk(3, -1);
    const double scale = 1 / std::sqrt(static_cast<double>(x.size(1)));
    const at::Tensor read = tessera::Attention(parts[0], parts[1], parts[2], std::nullopt, scale).squeeze(2);
    return x + out.Forward(read, context).transpose(1, 2).reshape(x.sizes());
  }

  GroupNorm norm;
  Linear qkv, out;
};

struct Autoencoder::Middle {
  Middle(const ParamScope& scope, int64_t width, int64_t groups, bool with_attention)
      : first(scope / "resnets" / 0, width, width, groups), second(scope / "resnets" / 1, width, width, groups) {
    if (with_attention) attention.emplace(scope / "attentions" / 0, width, groups);
  }

  at::Tensor Forward(at::Tensor x, const ForwardContext& context, int64_t band_bytes) const {
    x = first.Forward(x, band_bytes);
    if (attention) x = attention->Forward(x, context, band_bytes);
    return second.Forward(x, band_bytes);
  }

  Residual first, second;
  std::optional<Attention> attention;
};

struct Autoencoder::Level {
  at::Tensor Forward(at::Tensor x, int64_t band_bytes) const {
    for (const Residual& residual : residuals) x = residual.Forward(x, band_bytes);
    return resample ? resample->Forward(x, nullptr, band_bytes) : x;
  }

  std::vector<Residual> residuals;
  std::optional<BandedConv> resample;
};

Autoencoder::Autoencoder(const AutoencoderConfig& config, ParamTable& table)
    : config_(config),
      encoder_in_(ParamScope(table) / "encoder.conv_in", config.image_channels, config.widths.front()),
      decoder_in_(ParamScope(table) / "decoder.conv_in", config.latent_channels, config.widths.back()),
      encoder_norm_(ParamScope(table) / "encoder.conv_norm_out", config.widths.back(), config.groups),
      decoder_norm_(ParamScope(table) / "decoder.conv_norm_out", config.widths.front(), config.groups),
      encoder_out_(ParamScope(table) / "encoder.conv_out", config.widths.back(), 2 * config.latent_channels),
      decoder_out_(ParamScope(table) / "decoder.conv_out", config.widths.front(), config.image_channels) {
  const ParamScope root(table);
  const int64_t levels = static_cast<int64_t>(config.widths.size());
  if (config.quant_conv) {
    quant_ =
        std::make_unique<BandedConv>(root / "quant_conv", 2 * config.latent_channels, 2 * config.latent_channels, 1);
  }
  if (config.post_quant_conv) {
    post_quant_ =
        std::make_unique<BandedConv>(root / "post_quant_conv", config.latent_channels, config.latent_channels, 1);
  }
  // The encoder goes from the finest level to the coarsest, the decoder back with one more residual a level.
  int64_t width = config.widths.front();
  for (int64_t i = 0; i < levels; ++i) {
    const ParamScope scope = root / "encoder.down_blocks" / i;
    Level level;
    for (int64_t r = 0; r < config.layers_per_block; ++r) {
      level.residuals.emplace_back(scope / "resnets" / r, width, config.widths[i], config.groups);
      width = config.widths[i];
    }
    if (i + 1 < levels) level.resample.emplace(scope / "downsamplers.0.conv", width, width, 3, Resample::kDown);
    down_.push_back(std::move(level));
  }
  width = config.widths.back();
  for (int64_t i = 0; i < levels; ++i) {
    const ParamScope scope = root / "decoder.up_blocks" / i;
    const int64_t out = config.widths[levels - 1 - i];
    Level level;
    for (int64_t r = 0; r <= config.layers_per_block; ++r) {
      level.residuals.emplace_back(scope / "resnets" / r, width, out, config.groups);
      width = out;
    }
    if (i + 1 < levels) level.resample.emplace(scope / "upsamplers.0.conv", width, width, 3, Resample::kUp);
    up_.push_back(std::move(level));
  }
  encoder_middle_ =
      std::make_unique<Middle>(root / "encoder.mid_block", config.widths.back(), config.groups, config.mid_attention);
  decoder_middle_ =
      std::make_unique<Middle>(root / "decoder.mid_block", config.widths.back(), config.groups, config.mid_attention);
}

Autoencoder::~Autoencoder() = default;

at::Tensor Autoencoder::Decode(const at::Tensor& latents, const ForwardContext& context, int64_t band_bytes) const {
  at::Tensor x = Unscale(latents);
  if (post_quant_) x = post_quant_->Forward(x, nullptr, band_bytes);
  x = decoder_middle_->Forward(decoder_in_.Forward(x, nullptr, band_bytes), context, band_bytes);
  for (const Level& level : up_) x = level.Forward(std::move(x), band_bytes);
  return decoder_out_.Forward(x, &decoder_norm_, band_bytes);
}

Autoencoder::Posterior Autoencoder::Encode(const at::Tensor& image, const ForwardContext& context,
                                           int64_t band_bytes) const {
  at::Tensor x = encoder_in_.Forward(image, nullptr, band_bytes);
  for (const Level& level : down_) x = level.Forward(std::move(x), band_bytes);
  x = encoder_middle_->Forward(std::move(x), context, band_bytes);
  x = encoder_out_.Forward(x, &encoder_norm_, band_bytes);
  if (quant_) x = quant_->Forward(x, nullptr, band_bytes);
  const std::vector<at::Tensor> parts = x.chunk(2, 1);
  return {.mean = parts[0], .log_variance = parts[1].clamp(-30, 20)};
}

}  // namespace tessera
