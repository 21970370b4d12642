// Parses transformer/config.json of the PixArt family. LibTorch-free, so that a model can be described without loading
// it.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "base/json/json.h"

namespace tessera::models {

struct PixArtConfig {
  int64_t heads = 0;
  int64_t head_dim = 0;
  int64_t layers = 0;
  int64_t in_channels = 0;
  int64_t out_channels = 0;  // in_channels, or twice that if the variance is learned
  int64_t patch = 0;
  int64_t sample_size = 0;  // latent side the model was trained at
  int64_t caption_channels = 0;
  bool additional_conditions = false;  // whether resolution and aspect ratio are embedded in addition to the timestep
  double interpolation_scale = 1;
  double norm_eps = 1e-6;

  int64_t width() const { return heads * head_dim; }
};

// Reads both PixArtTransformer2DModel and the legacy Transformer2DModel with norm_type ada_norm_single. Returns
// InvalidArgument with the field, its value and the valid values.
absl::StatusOr<PixArtConfig> ParsePixArtConfig(base::ConfigReader& reader);

}  // namespace tessera::models
