// The cost model predicts from a model's description what a task costs before anything runs: floating-point operations
// and peak memory. Pure. LearnedSpeed converts operations to seconds from measured steps, so a constant factor in the
// operations does no harm; the ratio between sizes must be right.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <vector>

#include "control/job_parameters.h"
#include "control/model_description.h"

namespace tessera::server {

// Cost coefficients of one model. A transformer's forward pass over n tokens of one row costs n · flops_per_token + n²
// · flops_per_token_pair.
struct ModelCost {
  double flops_per_token = 0;
  double flops_per_token_pair = 0;
  double flops_per_pixel = 0;               // decoder
  double pixels_per_token = 1;              // along one side: a token covers pixels_per_token² pixels
  double bytes_per_token = 0;               // peak activations of one row
  double bytes_per_row = 0;                 // modulations of the model's blocks, kept for the duration of a task
  double bytes_per_decoded_pixel = 0;       // decoder activations on a device
  double host_bytes_per_decoded_pixel = 0;  // and in main memory
  double fixed_bytes = 0;                   // per step, independent of its size
};

// Returns the coefficients from the description alone: the transformer's parameters and blocks give its width, and
// `size_multiple` gives the pixels of a token. `element_bytes` is the element size of the served dtype: 2, 4 or 8.
ModelCost CostOf(const control::ModelDescription& model, int32_t element_bytes);

// Tasks of one shape class may share a batch, whatever their steps, samplers, seeds and guidance scales are.
struct ShapeClass {
  std::string model;
  int32_t height = 0;  // pixels
  int32_t width = 0;
  int32_t rows = 1;                     // batch rows that one task takes: its guidance branches that run at once
  std::vector<int32_t> skipped_layers;  // layers that one of these branches skips
  bool guidance_rescaled = false;
  bool resolution_binned = false;
  std::string adapters;  // control::AdapterKey; adapters change the computation of every row of the batch

  auto operator<=>(const ShapeClass&) const = default;
};

// Returns the class of a validated task. `name` is the model's name in requests.
ShapeClass ShapeOf(const std::string& name, const control::ModelDescription& model,
                   const control::JobParameters& parameters);

// Describes how a group divides the work.
struct GroupShare {
  int32_t sequence = 1;  // ranks that divide the tokens: ring × Ulysses
  int32_t tensor = 1;
  int32_t cfg = 1;
  int32_t pipe = 1;
  bool images_share_passes = true;  // then the activations of all tasks of a batch exist at once
  double most_band_bytes = 0;       // the decoder's temporaries apart from its activations, at most; 0: on a device
};

double StepFlops(const ModelCost& cost, const ShapeClass& shape);
double DecodeFlops(const ModelCost& cost, const ShapeClass& shape);

// Returns the largest memory in bytes, excluding weights, that any rank needs for a batch of `tasks` of this shape.
double PeakBytes(const ModelCost& cost, const ShapeClass& shape, int32_t tasks, const GroupShare& share);

}  // namespace tessera::server
