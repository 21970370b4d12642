// FamilyDescription lists which inputs a model accepts. It is read from the model's configuration without loading the
// model. LibTorch-free.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "control/model/model_cost.h"
#include "control/model/weight_sizes.h"
#include "control/pictures/picture_input.h"
#include "models/adapters/plan/adapter_names.h"
#include "parallel/plan/layout_bytes.h"

namespace tessera::models {

struct FamilyDescription {
  int64_t size_multiple = 1;           // of height and width
  int64_t min_size = 1, max_size = 0;  // pixels a side
  int64_t default_height = 0, default_width = 0;
  int64_t default_steps = 0;
  double default_guidance_scale = 1;  // 0: the model has no guidance scale
  // The name of the model to train in place of this one, which is distilled to few steps; empty: it is not distilled.
  std::string base_model;
  bool can_bin = false;  // whether the family has a table of sizes for this model
  bool default_resolution_binning = false;
  bool default_clean_caption = false;
  int64_t default_max_sequence_length = 0;
  int64_t max_sequence_length = 0;
  int64_t heads = 0, blocks = 0;
  parallel::ExchangeModel exchange;  // the communication between ranks for this model
  std::vector<double> block_flops;   // cost of each block at the default size, by which pipeline stages are balanced
  control::ModelCost cost;
  std::vector<control::ComponentWeights> weights;  // sizes of the components' weights
  control::PictureRules pictures;                  // which pictures the model takes, and what it does with them
  bool binning_keeps_size = true;                  // whether a binned image is resized to the size that was requested
  std::vector<std::string> options;                // names of the PromptOptions fields that the family reads
  std::vector<std::string> warnings;               // about unused fields of configuration files
  AdaptableModel adaptable;                        // which products adapter files may apply to
};

}  // namespace tessera::models
