// Parses transformer/config.json of Z-Image. LibTorch-free.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "base/json/json.h"

namespace tessera::models {

struct ZImageConfig {
  int64_t width = 0;     // dim
  int64_t heads = 0;     // n_heads
  int64_t layers = 0;    // over image and text together
  int64_t refiners = 0;  // layers over the image alone, and as many over the text alone
  int64_t channels = 0;  // of the latents
  int64_t text_width = 0;
  double norm_eps = 1e-5;
  double timestep_scale = 1000;  // t_scale
  double rope_theta = 256;
  std::vector<int64_t> axes;          // number of a head's channels that encode (frame, row, column)
  std::vector<int64_t> axis_lengths;  // positions of each axis

  int64_t head_dim() const { return width / heads; }
  int64_t hidden() const { return static_cast<int64_t>(static_cast<double>(width) / 3 * 8); }  // of an MLP
  int64_t modulation_width() const { return width < 256 ? width : 256; }
  static constexpr int64_t kPatch = 2;          // latents per token along one side
  static constexpr int64_t kTokensPadded = 32;  // texts and images are padded to multiples of this
};

// Returns InvalidArgument with the field, its value and the valid values.
absl::StatusOr<ZImageConfig> ParseZImageConfig(base::ConfigReader& reader);

}  // namespace tessera::models
