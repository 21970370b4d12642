// Parses transformer/config.json of Stable Diffusion 3 and 3.5. LibTorch-free.
#pragma once

#include <cstdint>
#include <set>

#include "absl/status/statusor.h"
#include "base/json/json.h"

namespace tessera::models {

struct Sd3Config {
  int64_t heads = 0;
  int64_t head_dim = 0;
  int64_t layers = 0;
  int64_t channels = 0;  // in_channels = out_channels
  int64_t patch = 0;
  int64_t sample_size = 0;        // latent side the model was trained at
  int64_t position_side = 0;      // pos_embed_max_size: side of the table of positions
  int64_t text_width = 0;         // joint_attention_dim
  int64_t pooled_width = 0;       // pooled_projection_dim
  bool qk_norm = false;           // RMSNorm of queries and keys
  std::set<int64_t> dual_layers;  // blocks with a second attention, over the image only

  int64_t width() const { return heads * head_dim; }
};

// Returns InvalidArgument with the field, its value and the valid values.
absl::StatusOr<Sd3Config> ParseSd3Config(base::ConfigReader& reader);

}  // namespace tessera::models
