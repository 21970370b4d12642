// Parses transformer/config.json of FLUX.1. LibTorch-free.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "base/json/json.h"

namespace tessera::models {

struct FluxConfig {
  int64_t heads = 0;
  int64_t head_dim = 0;
  int64_t double_blocks = 0;  // num_layers
  int64_t single_blocks = 0;  // num_single_layers
  int64_t channels = 0;       // of a packed token (2 x 2 latents)
  // Further channels of an input token: those of a masked picture and its mask (FLUX.1 Fill). 0: none.
  int64_t condition_channels = 0;
  int64_t text_width = 0;     // joint_attention_dim
  int64_t pooled_width = 0;   // pooled_projection_dim
  bool guidance = false;      // whether the guidance scale is an input of the model
  std::vector<int64_t> axes;  // number of a head's channels that encode (text index, row, column)

  int64_t width() const { return heads * head_dim; }
  int64_t latent_channels() const { return channels / 4; }
};

// Returns InvalidArgument with the field, its value and the valid values.
absl::StatusOr<FluxConfig> ParseFluxConfig(base::ConfigReader& reader);

}  // namespace tessera::models
