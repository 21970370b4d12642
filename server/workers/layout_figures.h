// Computes what a layout costs: the bytes that its ranks send per denoising step and the weights that they hold. Uses
// only the model's description, before any weights are read. Pure.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "parallel/plan/layout.h"
#include "parallel/plan/layout_bytes.h"

namespace tessera::control {
enum class Dtype;
struct ModelDescription;
struct TransformerShape;
}  // namespace tessera::control

namespace tessera::server {

// The input of the transformer in one step of one image of `height` x `width` pixels: one row per default guidance
// branch, with text of the default length. InvalidArgument for an invalid image size; FailedPrecondition where the
// shape of the model's transformer is unknown.
absl::StatusOr<parallel::ForwardPass> DefaultPass(const control::ModelDescription& model, int64_t height, int64_t width,
                                                  control::Dtype dtype);

// Bytes that a rank sends in one forward pass: the rank that sends least and the rank that sends most.
struct SentBytes {
  parallel::ExchangedBytes least, most;
};

// The layout must be valid for the model.
absl::StatusOr<SentBytes> BytesSent(const parallel::Layout& layout, const control::TransformerShape& transformer,
                                    const parallel::ForwardPass& pass);

// Estimated weights per rank, assuming that all blocks have the same size and are distributed evenly. The text encoders
// are on the first rank, the autoencoder is on every rank.
struct RankWeights {
  uint64_t first = 0, others = 0;  // bytes
};
RankWeights WeightsOf(const parallel::Layout& layout, const control::ModelDescription& model, control::Dtype dtype);

}  // namespace tessera::server
