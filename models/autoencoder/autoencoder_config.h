// Parses config.json of an AutoencoderKL. LibTorch-free.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "base/json/json.h"
#include "models/autoencoder/decoding_cost.h"

namespace tessera::models {

struct AutoencoderConfig {
  int64_t image_channels = 3;
  int64_t latent_channels = 4;
  std::vector<int64_t> widths;  // block_out_channels, finest first
  int64_t layers_per_block = 1;
  int64_t groups = 32;
  bool quant_conv = true;
  bool post_quant_conv = true;
  bool mid_attention = true;
  double scaling_factor = 0.18215;
  double shift_factor = 0;

  // Pixels per latent along one side: every level except the last halves the image.
  int64_t factor() const { return int64_t{1} << (widths.size() - 1); }
};

// Returns InvalidArgument with the field, its value and the valid values.
absl::StatusOr<AutoencoderConfig> ParseAutoencoderConfig(base::ConfigReader& reader);

DecoderShape DecoderOf(const AutoencoderConfig& config);

}  // namespace tessera::models
