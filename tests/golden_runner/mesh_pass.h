// Runs one forward pass on the ranks of a layout.
#pragma once

#include "models/adapters/adapter_set.h"
#include "models/transformer.h"
#include "tests/golden_runner/on_ranks.h"

namespace tessera::golden {

// Returns the head's result for the whole image, equal on every rank. All parts of the input are computed in this call.
// `adapters` is this rank's part.
at::Tensor RunOnMesh(const models::Transformer& transformer, const models::TransformerInput& input,
                     const RankPlace& place, models::SharedAdapters adapters = nullptr);

}  // namespace tessera::golden
