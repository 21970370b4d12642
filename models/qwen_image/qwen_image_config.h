// Parses transformer/config.json of Qwen-Image. LibTorch-free.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "base/json/json.h"

namespace tessera::models {

struct QwenImageConfig {
  // The reference's tables of rotary positions end here: the greatest position of a text token, and half of the largest
  // side of a grid.
  static constexpr int64_t kPositions = 4096;

  int64_t heads = 0;
  int64_t head_dim = 0;
  int64_t layers = 0;
  int64_t channels = 0;       // of a token (patch x patch latents)
  int64_t patch = 0;          // latents per token along one side
  int64_t text_width = 0;     // joint_attention_dim
  std::vector<int64_t> axes;  // number of a head's channels that encode (frame, row, column)
  // Whether the tokens of reference pictures have the modulation of timestep 0 (zero_cond_t).
  bool clean_references = false;

  int64_t width() const { return heads * head_dim; }
  int64_t latent_channels() const { return channels / (patch * patch); }
};

// Returns InvalidArgument with the field, its value and the valid values.
absl::StatusOr<QwenImageConfig> ParseQwenImageConfig(base::ConfigReader& reader);

}  // namespace tessera::models
