// config.json of a CLIP text encoder. LibTorch-free.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "base/json.h"

namespace tessera {

struct ClipConfig {
  int64_t vocabulary = 0;
  int64_t width = 0;
  int64_t heads = 0;
  int64_t hidden = 0;  // intermediate_size
  int64_t layers = 0;
  int64_t positions = 0;   // the longest text, in tokens
  int64_t projection = 0;  // width of the projected pooled output; 0: it is not projected
  bool quick_gelu = true;  // x · sigmoid(1.702 x), else the exact GELU
  double norm_eps = 1e-5;
  int64_t end_id = 2;  // eos_token_id; 2 is the legacy value that means "the largest id of the text"

  int64_t pooled_width() const { return projection > 0 ? projection : width; }
};

// `projected` tells CLIPTextModelWithProjection from CLIPTextModel. InvalidArgument names the field, its value and what
// is valid.
absl::StatusOr<ClipConfig> ParseClipConfig(ConfigReader& reader, bool projected);

}  // namespace tessera
