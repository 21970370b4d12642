// config.json of a BERT encoder. LibTorch-free.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "base/json.h"

namespace tessera {

struct BertConfig {
  int64_t vocabulary = 0;
  int64_t width = 0;
  int64_t heads = 0;
  int64_t hidden = 0;  // intermediate_size
  int64_t layers = 0;
  int64_t positions = 0;  // the longest text, in tokens
  int64_t token_types = 0;
  double norm_eps = 1e-12;
};

// InvalidArgument names the field, its value and what is valid.
absl::StatusOr<BertConfig> ParseBertConfig(ConfigReader& reader);

}  // namespace tessera
