// Parses config.json of an AutoencoderKLQwenImage. LibTorch-free.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "base/json/json.h"
#include "models/autoencoder/decoding_cost.h"

namespace tessera::models {

struct QwenAutoencoderConfig {
  int64_t image_channels = 3;
  int64_t latent_channels = 16;           // z_dim
  int64_t width = 96;                     // base_dim
  std::vector<int64_t> multipliers;       // dim_mult, finest level first; a level has width · multiplier channels
  int64_t residuals = 2;                  // num_res_blocks of a level of the encoder; the decoder has one more
  std::vector<bool> halves_time;          // temperal_downsample: whether a reduction of the encoder halves time too
  std::vector<double> means, deviations;  // of each latent channel

  int64_t levels() const { return static_cast<int64_t>(multipliers.size()); }
  int64_t channels(int64_t level) const { return width * multipliers[static_cast<size_t>(level)]; }
  // Channels of the decoder at the beginning of a level: an enlargement halves them.
  int64_t decoder_input(int64_t level) const {
    return level + 1 < levels() ? channels(level + 1) / 2 : channels(level);
  }
  // Pixels per latent along one side: every level except the last halves the image.
  int64_t factor() const { return int64_t{1} << (levels() - 1); }
};

// Returns InvalidArgument with the field, its value and the valid values.
absl::StatusOr<QwenAutoencoderConfig> ParseQwenAutoencoderConfig(base::ConfigReader& reader);

DecoderShape DecoderOf(const QwenAutoencoderConfig& config);

}  // namespace tessera::models
