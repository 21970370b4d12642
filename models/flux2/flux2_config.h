// Parses transformer/config.json of FLUX.2. LibTorch-free.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "base/json/json.h"

namespace tessera::models {

struct Flux2Config {
  int64_t heads = 0;
  int64_t head_dim = 0;
  int64_t double_blocks = 0;  // num_layers
  int64_t single_blocks = 0;  // num_single_layers
  int64_t channels = 0;       // of a token, which is a patch of 2 x 2 latents
  int64_t text_width = 0;     // joint_attention_dim
  int64_t mlp_width = 0;      // of the product of gate and value
  int64_t sinusoid_channels = 0;
  bool guidance = false;      // whether the guidance scale is an input of the model
  std::vector<int64_t> axes;  // number of a head's channels that encode (picture, row, column, text index)
  double theta = 0;           // base of the rotary frequencies
  double eps = 0;             // of all norms
  // Tokens of reference pictures attend only to one another and are modulated as at timestep 0. A property of how the
  // checkpoint is used, and no field of the file.
  bool isolates_references = false;

  int64_t width() const { return heads * head_dim; }
  int64_t latent_channels() const { return channels / 4; }
};

// Returns InvalidArgument with the field, its value and the valid values.
absl::StatusOr<Flux2Config> ParseFlux2Config(base::ConfigReader& reader);

}  // namespace tessera::models
