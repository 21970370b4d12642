// How long a layout takes for an image, and how much memory its ranks need: predicted from a model's shape and a
// machine's rates. docs/planner.md has the formulas. Pure.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "control/model_description.h"
#include "parallel/plan/layout.h"
#include "parallel/plan/layout_bytes.h"
#include "server/planning/machine.h"
#include "server/workers/layout_figures.h"

namespace tessera::server {

// Floating-point operations of one row of a forward pass through all blocks.
struct PassFlops {
  double products = 0;
  double attention = 0;
  double total() const { return products + attention; }
};

// For `image_tokens` tokens of an image beside `text_tokens`: block_flops has them at the default size. The shape is
// known.
PassFlops FlopsOf(const control::ModelDescription& model, int64_t image_tokens, int64_t text_tokens);

struct ImageWork {
  int32_t width = 0, height = 0;  // pixels
  int32_t steps = 0;
  control::Dtype dtype = control::Dtype::kBf16;
  bool decodes = true;                 // the latents at the end
  bool splits_decoding = true;         // over all ranks, as Tessera does; else one rank decodes
  std::optional<int64_t> text_tokens;  // of a prompt, where the model reads no padding; absent: the default length
};

// DefaultPass with the work's text.
absl::StatusOr<parallel::ForwardPass> PassOf(const control::ModelDescription& model, const ImageWork& work);

// Seconds of one image on one group.
struct LayoutTime {
  double prompt = 0;
  double step = 0;  // of one after the warm-up
  double denoising = 0;
  double decoding = 0;
  // Of a step: what is not hidden behind computing.
  double exchange = 0;

  double image() const { return prompt + denoising + decoding; }
};

// For a layout that is valid for the model. FailedPrecondition where the shape of the model's transformer is not known.
absl::StatusOr<LayoutTime> TimeOf(const parallel::Layout& layout, const control::ModelDescription& model,
                                  const ImageWork& work, const Machine& machine);

// Bytes of the rank that needs most: weights, activations of a step or of decoding, with patches the keys and values
// that are kept, and what a process and its libraries take on a device.
absl::StatusOr<uint64_t> MemoryOf(const parallel::Layout& layout, const control::ModelDescription& model,
                                  const ImageWork& work);

}  // namespace tessera::server
