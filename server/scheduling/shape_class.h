// ShapeClass states which tasks may share a batch. Pure.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <vector>

namespace tessera::control {
struct ImageWork;
struct JobParameters;
struct ModelCost;
}  // namespace tessera::control

namespace tessera::server {

// Tasks of one shape class may share a batch, whatever their steps, samplers, seeds and guidance scales are.
struct ShapeClass {
  std::string model;
  int32_t height = 0;  // pixels, as generated
  int32_t width = 0;
  int32_t text_tokens = 0;              // of one row
  int32_t rows = 1;                     // batch rows that one task takes: its guidance branches that run at once
  std::vector<int32_t> skipped_layers;  // layers that one of these branches skips
  bool guidance_rescaled = false;
  bool resolution_binned = false;
  std::string adapters;  // control::AdapterKey; adapters change the computation of every row of the batch

  auto operator<=>(const ShapeClass&) const = default;

  control::ImageWork work() const;
};

// Returns the class of a validated task. `name` is the model's name in requests.
ShapeClass ShapeOf(const std::string& name, const control::ModelCost& cost, const control::JobParameters& parameters);

}  // namespace tessera::server
