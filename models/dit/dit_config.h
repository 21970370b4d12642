// Parses transformer/config.json of DiT. LibTorch-free.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "base/json/json.h"

namespace tessera::models {

struct DitConfig {
  int64_t heads = 0;
  int64_t head_dim = 0;
  int64_t layers = 0;
  int64_t in_channels = 0;
  int64_t out_channels = 0;  // in_channels, or twice that if the variance is learned
  int64_t patch = 0;
  int64_t sample_size = 0;  // latent side; the model generates no other size
  int64_t classes = 0;      // the table has one more row, for no class
  double norm_eps = 1e-5;   // of the norm before the MLP

  int64_t width() const { return heads * head_dim; }
};

// Reads both DiTTransformer2DModel and the legacy Transformer2DModel with norm_type ada_norm_zero. Returns
// InvalidArgument with the field, its value and the valid values.
absl::StatusOr<DitConfig> ParseDitConfig(base::ConfigReader& reader);

}  // namespace tessera::models
