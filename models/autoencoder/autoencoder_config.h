// Parses config.json of an AutoencoderKL or AutoencoderKLFlux2. LibTorch-free.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "base/json/json.h"
#include "models/autoencoder/decoding_cost.h"

namespace tessera::models {

struct AutoencoderConfig {
  int64_t image_channels = 3;
  int64_t latent_channels = 4;
  std::vector<int64_t> widths;               // block_out_channels, finest first
  std::vector<int64_t> decoder_widths = {};  // empty if they are the same
  int64_t layers_per_block = 1;
  int64_t groups = 32;
  bool quant_conv = true;
  bool post_quant_conv = true;
  bool mid_attention = true;
  double scaling_factor = 0.18215;
  double shift_factor = 0;
  // Only AutoencoderKLFlux2: the side of the patches that the transformer's latents are, and batch normalisation of
  // their channels in place of the two factors.
  int64_t patch = 1;
  std::optional<double> batch_norm_eps = std::nullopt;

  const std::vector<int64_t>& widths_of_decoder() const { return decoder_widths.empty() ? widths : decoder_widths; }
  // Pixels per latent of the network along one side: every level except the last halves the image.
  int64_t factor() const { return int64_t{1} << (widths.size() - 1); }
};

// These return InvalidArgument with the field, its value and the valid values.
absl::StatusOr<AutoencoderConfig> ParseAutoencoderConfig(base::ConfigReader& reader);
absl::StatusOr<AutoencoderConfig> ParseFlux2AutoencoderConfig(base::ConfigReader& reader);

DecoderShape DecoderOf(const AutoencoderConfig& config);

}  // namespace tessera::models
