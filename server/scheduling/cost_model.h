// What a task costs, predicted from its model's description before anything runs: floating-point operations and peak
// memory. Pure. The operations are turned into seconds by what a group was seen to need (learned_speed.h), so a
// constant factor in them does no harm; the ratio between sizes must be right.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <vector>

#include "control/job_parameters.h"
#include "control/model_description.h"

namespace tessera::server {

// The coefficients of one model. A transformer's forward pass over n tokens of one row costs
// n · flops_per_token + n² · flops_per_token_pair.
struct ModelCost {
  double flops_per_token = 0;
  double flops_per_token_pair = 0;
  double flops_per_pixel = 0;          // of the decoder
  double pixels_per_token = 1;         // of one side: a token covers pixels_per_token² pixels
  double bytes_per_token = 0;          // activations of one row, largest at any time
  double bytes_per_row = 0;            // modulations of its blocks, which are kept while a task lasts
  double bytes_per_decoded_pixel = 0;  // activations of the decoder
  double fixed_bytes = 0;              // of a step, whatever its size
};

// From the description alone: the transformer's parameters and blocks give its width, `size_multiple` the pixels of a
// token. `element_bytes` of the served dtype: 2, 4 or 8.
ModelCost CostOf(const control::ModelDescription& model, int32_t element_bytes);

// Tasks of one shape class may share a batch, whatever their steps, samplers, seeds and guidance scales.
struct ShapeClass {
  std::string model;
  int32_t height = 0;  // pixels
  int32_t width = 0;
  int32_t rows = 1;                     // of the batch that one task takes: its guidance branches that run at once
  std::vector<int32_t> skipped_layers;  // that one of these branches leaves out
  bool guidance_rescaled = false;
  bool resolution_binned = false;
  std::string adapters;  // control::AdapterKey: they change what is computed for every row of the batch

  auto operator<=>(const ShapeClass&) const = default;
};

// The class of a validated task of the model that requests call `name`.
ShapeClass ShapeOf(const std::string& name, const control::ModelDescription& model,
                   const control::JobParameters& parameters);

// How a group divides the work.
struct GroupShare {
  int32_t sequence = 1;  // ranks that divide the tokens: ring × Ulysses
  int32_t tensor = 1;
  int32_t cfg = 1;
  int32_t pipe = 1;
  bool images_share_passes = true;  // so that activations of all tasks of a batch are there at once
};

double StepFlops(const ModelCost& cost, const ShapeClass& shape);
double DecodeFlops(const ModelCost& cost, const ShapeClass& shape);

// The largest memory that any rank needs beside its weights, in bytes, for a batch of `tasks` of this shape.
double PeakBytes(const ModelCost& cost, const ShapeClass& shape, int32_t tasks, const GroupShare& share);

}  // namespace tessera::server
