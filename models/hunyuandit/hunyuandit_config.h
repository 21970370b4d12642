// Parses transformer/config.json of HunyuanDiT. LibTorch-free.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "base/json/json.h"
#include "parallel/plan/long_skip.h"

namespace tessera::models {

struct HunyuanConfig {
  int64_t heads = 0;
  int64_t head_dim = 0;
  int64_t layers = 0;
  int64_t channels = 0;  // input channels; the output has twice as many if the variance is learned
  int64_t out_channels = 0;
  int64_t patch = 0;
  int64_t hidden = 0;                      // of the MLP
  int64_t sample_size = 0;                 // latent side the model was trained at
  int64_t bert_width = 0;                  // cross_attention_dim
  int64_t t5_width = 0;                    // cross_attention_dim_t5
  int64_t pooled_width = 0;                // pooled_projection_dim
  int64_t bert_tokens = 0, t5_tokens = 0;  // text_len, text_len_t5
  bool style_and_size = false;             // v1.1: the model is conditioned on a style and on sizes

  int64_t width() const { return heads * head_dim; }
  // The second half of the blocks reads the outputs of the first half in reverse: the last block reads the first one's.
  std::vector<parallel::LongSkip> long_skips() const;
};

// Returns InvalidArgument with the field, its value and the valid values.
absl::StatusOr<HunyuanConfig> ParseHunyuanConfig(base::ConfigReader& reader);

}  // namespace tessera::models
