// config.json of a T5 encoder. LibTorch-free.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "base/json.h"

namespace tessera {

struct T5Config {
  int64_t vocabulary = 0;
  int64_t width = 0;     // d_model
  int64_t head_dim = 0;  // d_kv; heads · head_dim may differ from width
  int64_t heads = 0;
  int64_t hidden = 0;  // d_ff
  int64_t layers = 0;
  int64_t buckets = 32;
  int64_t max_distance = 128;
  double norm_eps = 1e-6;
};

// InvalidArgument names the field, its value and what is valid.
absl::StatusOr<T5Config> ParseT5Config(ConfigReader& reader);

}  // namespace tessera
