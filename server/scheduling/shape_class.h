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

// The pictures that are encoded before a task's first step, one after another.
struct EncodedPictures {
  double pixels = 0;   // of all of them, as they are encoded
  double largest = 0;  // of one of them

  // They take no part in the comparison of shape classes, because the steps of a batch do not depend on them.
  bool operator==(const EncodedPictures&) const { return true; }
  std::strong_ordering operator<=>(const EncodedPictures&) const { return std::strong_ordering::equal; }
};

// Tasks of one shape class may share a batch, whatever their steps, samplers, seeds and guidance scales are.
struct ShapeClass {
  std::string model;
  int32_t height = 0;  // pixels, as generated
  int32_t width = 0;
  int32_t text_tokens = 0;              // of one row, with those of pictures that the model looks at
  int32_t rows = 1;                     // batch rows that one task takes: its guidance branches that run at once
  std::vector<int32_t> skipped_layers;  // layers that one of these branches skips
  bool guidance_rescaled = false;
  bool resolution_binned = false;
  std::string adapters;  // control::AdapterKey; adapters change the computation of every row of the batch
  EncodedPictures pictures;

  auto operator<=>(const ShapeClass&) const = default;

  control::ImageWork work() const;
};

// Returns the class of a validated task. `name` is the model's name in requests.
ShapeClass ShapeOf(const std::string& name, const control::ModelCost& cost, const control::JobParameters& parameters);

}  // namespace tessera::server
