// Predicts how long a layout takes for an image and how much memory its ranks need, from a model's shape and a
// machine's rates. docs/planner.md has the formulas. Pure.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "control/parameters/dtype.h"
#include "parallel/plan/layout.h"
#include "parallel/plan/layout_bytes.h"
#include "server/planning/machine.h"
#include "server/workers/layout_figures.h"

namespace tessera::control {
struct ModelDescription;
}

namespace tessera::server {

struct PlannedImage {
  int32_t width = 0, height = 0;  // pixels
  int32_t steps = 0;
  control::Dtype dtype = control::Dtype::kBf16;
  bool decodes = true;                 // whether the latents are decoded at the end
  bool splits_decoding = true;         // over all ranks, as Tessera does; false: one rank decodes
  std::optional<int64_t> text_tokens;  // of a prompt, if the model reads no padding; absent: the default length
};

// Returns DefaultPass with the work's text tokens.
absl::StatusOr<parallel::ForwardPass> PassOf(const control::ModelDescription& model, const PlannedImage& work);

// Seconds of one image on one group.
struct LayoutTime {
  double prompt = 0;
  double step = 0;  // one step after the warm-up
  double denoising = 0;
  double decoding = 0;
  // Part of a step in which exchanges are not overlapped with computation.
  double exchange = 0;

  double image() const { return prompt + denoising + decoding; }
};

// The layout must be valid for the model. FAILED_PRECONDITION if the shape of the model's transformer is unknown.
absl::StatusOr<LayoutTime> TimeOf(const parallel::Layout& layout, const control::ModelDescription& model,
                                  const PlannedImage& work, const Machine& machine);

// Returns the bytes of the rank that needs most: weights, activations of a step or of decoding, the keys and values
// that patches keep, and the memory of a process and its libraries on a device.
absl::StatusOr<uint64_t> MemoryOf(const parallel::Layout& layout, const control::ModelDescription& model,
                                  const PlannedImage& work);

}  // namespace tessera::server
