// What a model of some family accepts, read from its configuration without loading it. LibTorch-free.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "models/adapters/plan/adapter_names.h"
#include "parallel/plan/layout_bytes.h"

namespace tessera::models {

struct FamilyDescription {
  int64_t size_multiple = 1;           // of height and width
  int64_t min_size = 1, max_size = 0;  // pixels a side
  int64_t default_height = 0, default_width = 0;
  int64_t default_steps = 0;
  double default_guidance_scale = 1;  // 0: the model takes none
  bool can_bin = false;               // the family has a table of sizes for this model
  bool default_resolution_binning = false;
  bool default_clean_caption = false;
  int64_t default_max_sequence_length = 0;
  int64_t max_sequence_length = 0;
  int64_t heads = 0, blocks = 0;
  parallel::ExchangeModel exchange;   // what ranks exchange for it
  int64_t token_side = 0;             // of an image token, in pixels
  int64_t text_tokens = 0;            // of a prompt of the default length, as blocks see it
  std::vector<double> block_flops;    // what each block costs at the default size: pipeline stages are balanced by it
  bool binning_keeps_size = true;     // under binning the image is brought back to the size that was asked for
  std::vector<std::string> options;   // fields of PromptOptions that the family reads, by their names
  std::vector<std::string> warnings;  // fields of configuration files that nobody reads
  AdaptableModel adaptable;           // what adapter files are held against
};

struct ImageSize {
  int64_t height = 0, width = 0;
};

}  // namespace tessera::models
