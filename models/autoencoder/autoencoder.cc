#include "models/autoencoder/autoencoder.h"

#include <cmath>
#include <optional>

#include "base/macros/status_macros.h"
#include "control/model/model_cost.h"
#include "kernels/ops.h"
#include "models/precision.h"
#include "parallel/functional.h"
#include "parallel/image_rows.h"

namespace tessera::models {

struct Autoencoder::Residual {
  Residual(const ParamScope& scope, int64_t in, int64_t out, int64_t groups)
      : norm1(scope / "norm1", in, groups),
        norm2(scope / "norm2", out, groups),
        conv1(scope / "conv1", in, out),
        conv2(scope / "conv2", out, out) {
    if (in != out) shortcut.emplace(scope / "conv_shortcut", in, out, 1);
  }

  at::Tensor Forward(const at::Tensor& x, const parallel::ImageRows& image, int64_t band_bytes) const {
    at::Tensor y = conv1.Forward(x, &norm1, image, band_bytes);
    y = conv2.Forward(y, &norm2, image, band_bytes);
    return y.add_(shortcut ? shortcut->Forward(x, nullptr, image, band_bytes) : x);
  }

  GroupNorm norm1, norm2;
  BandedConv conv1, conv2;
  std::optional<BandedConv> shortcut;
};

// Attention with a single head over all pixels. With one head only the queries can be distributed, so every rank reads
// all keys and values. Early files name the matrices query, key, value and proj_attn.
struct Autoencoder::Attention {
  Attention(const ParamScope& scope, int64_t width, int64_t groups)
      : norm(scope / "group_norm", width, groups),
        qkv(scope, width, {{"to_q", width, {"query"}}, {"to_k", width, {"key"}}, {"to_v", width, {"value"}}}),
        out(scope, width, {{"to_out.0", width, {"proj_attn"}}}) {}

  at::Tensor Forward(const at::Tensor& x, const parallel::ForwardContext& context, const parallel::ImageRows& image,
                     int64_t band_bytes) const {
    const int64_t b = x.size(0), c = x.size(1), n = x.size(2) * x.size(3);
    const at::Tensor tokens =
        norm.Measure(x, image, band_bytes).Apply(x, /*silu=*/false).flatten(2).transpose(1, 2);  // [b, n, c]
    const at::Tensor projected = n > 0 ? qkv.Forward(tokens, context) : at::empty({b, 0, 3 * c}, x.options());
    std::vector<int64_t> pixels = image.rows().vec();
    for (int64_t& rows : pixels) rows *= x.size(3);
    const std::vector<at::Tensor> keys_values =
        parallel::GatherDim(projected.narrow(-1, c, 2 * c), 1, pixels, image.group())
            .unsqueeze(2)
            .chunk(2, -1);  // [b, all, 1, c]
    if (n == 0) return x;
    const double scale = 1 / std::sqrt(static_cast<double>(c));
    const at::Tensor read = tessera::kernels::Attention(projected.narrow(-1, 0, c).unsqueeze(2), keys_values[0],
                                                        keys_values[1], std::nullopt, scale);
    return x + out.Forward(read.squeeze(2), context).transpose(1, 2).reshape(x.sizes());
  }

  GroupNorm norm;
  Linear qkv, out;
};

struct Autoencoder::Middle {
  Middle(const ParamScope& scope, int64_t width, int64_t groups, bool with_attention)
      : first(scope / "resnets" / 0, width, width, groups), second(scope / "resnets" / 1, width, width, groups) {
    if (with_attention) attention.emplace(scope / "attentions" / 0, width, groups);
  }

  at::Tensor Forward(at::Tensor x, const parallel::ForwardContext& context, const parallel::ImageRows& image,
                     int64_t band_bytes) const {
    x = first.Forward(x, image, band_bytes);
    if (attention) x = attention->Forward(x, context, image, band_bytes);
    return second.Forward(x, image, band_bytes);
  }

  Residual first, second;
  std::optional<Attention> attention;
};

struct Autoencoder::Level {
  at::Tensor Forward(at::Tensor x, const parallel::ImageRows& image, int64_t band_bytes) const {
    for (const Residual& residual : residuals) x = residual.Forward(x, image, band_bytes);
    return resample ? resample->Forward(x, nullptr, image, band_bytes) : x;
  }

  std::vector<Residual> residuals;
  std::optional<BandedConv> resample;
};

Autoencoder::Autoencoder(const AutoencoderConfig& config, ParamTable& table)
    : factor_(config.factor()),
      norm_(config.shift_factor, config.scaling_factor),
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
  // The encoder goes from the finest level to the coarsest; the decoder goes back, with one more residual block per
  // level.
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

at::Tensor Autoencoder::DecodeInBands(const at::Tensor& latents, const parallel::ForwardContext& context,
                                      int64_t band_bytes) const {
  parallel::ImageRows image(parallel::EvenRows(latents.size(2), context.world.size()), context.world);
  at::Tensor x = InOrderOf(norm_.Invert(image.Take(latents)));
  if (post_quant_) x = post_quant_->Forward(x, nullptr, image, band_bytes);
  x = decoder_middle_->Forward(decoder_in_.Forward(x, nullptr, image, band_bytes), context, image, band_bytes);
  for (const Level& level : up_) {
    x = level.Forward(std::move(x), image, band_bytes);
    if (level.resample) image = image.Enlarged(2);
  }
  return image.GatherOnFirst(decoder_out_.Forward(x, &decoder_norm_, image, band_bytes));
}

LatentPosterior Autoencoder::Encode(const at::Tensor& image, const parallel::ForwardContext& context) const {
  const Posterior posterior = EncodeInBands(image, context, BandBytesOn(image.device()));
  const at::ScalarType accumulated = AccumulationType(image.scalar_type());
  return {.mean = norm_.Apply(posterior.mean.to(accumulated)),
          .deviation = norm_.ApplyToDeviation((posterior.log_variance.to(accumulated) * 0.5).exp())};
}

Autoencoder::Posterior Autoencoder::EncodeInBands(const at::Tensor& image, const parallel::ForwardContext& context,
                                                  int64_t band_bytes) const {
  // Each rank has the pixels of whole rows of latents, so that every level can halve them.
  const std::vector<int64_t> latent_rows = parallel::EvenRows(image.size(2) / factor_, context.world.size());
  parallel::ImageRows rows = parallel::ImageRows(latent_rows, context.world).Enlarged(factor_);
  at::Tensor x = encoder_in_.Forward(InOrderOf(rows.Take(image)), nullptr, rows, band_bytes);
  for (const Level& level : down_) {
    x = level.Forward(std::move(x), rows, band_bytes);
    if (level.resample) rows = rows.Reduced(2);
  }
  x = encoder_middle_->Forward(x, context, rows, band_bytes);
  x = encoder_out_.Forward(x, &encoder_norm_, rows, band_bytes);
  if (quant_) x = quant_->Forward(x, nullptr, rows, band_bytes);
  x = rows.GatherOnAll(x);
  const std::vector<at::Tensor> parts = x.chunk(2, 1);
  return {.mean = parts[0], .log_variance = parts[1].clamp(-30, 20)};
}

absl::StatusOr<ImageCodecConfig> ReadAutoencoderKl(base::ConfigReader& reader) {
  ASSIGN_OR_RETURN(const AutoencoderConfig config, ParseAutoencoderConfig(reader));
  return ImageCodecConfig{.latent_channels = config.latent_channels,
                          .factor = config.factor(),
                          .make = [config](ParamTable& table) { return std::make_unique<Autoencoder>(config, table); },
                          .describe_decoding = [config](control::ModelCost& cost) { DescribeDecoding(DecoderOf(config), cost); }};
}

}  // namespace tessera::models
