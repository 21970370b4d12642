// What a layout costs a model: the bytes that its ranks send in a denoising step, and the weights that they hold.
// Worked out from what is known of the model before any of its weights are read. Pure.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "control/model_description.h"
#include "parallel/plan/layout.h"
#include "parallel/plan/layout_bytes.h"

namespace tessera::server {

// What goes through the transformer in a step of one image of `height` x `width` pixels: as many rows as guidance has
// branches by default, with text of the default length. InvalidArgument for a size that no image can have;
// FailedPrecondition where the shape of the model's transformer is not known.
absl::StatusOr<parallel::ForwardPass> DefaultPass(const control::ModelDescription& model, int64_t height, int64_t width,
                                                  control::Dtype dtype);

// What the ranks send in a pass: the one that sends least and the one that sends most.
struct SentBytes {
  parallel::ExchangedBytes least, most;
};

// For a layout that is valid for the model.
absl::StatusOr<SentBytes> BytesSent(const parallel::Layout& layout, const control::TransformerShape& transformer,
                                    const parallel::ForwardPass& pass);

// Estimates: blocks are taken to be alike and dealt out evenly. The text encoders are on the first rank, the
// autoencoder is on all.
struct RankWeights {
  uint64_t first = 0, others = 0;  // bytes
};
RankWeights WeightsOf(const parallel::Layout& layout, const control::ModelDescription& model, control::Dtype dtype);

}  // namespace tessera::server
