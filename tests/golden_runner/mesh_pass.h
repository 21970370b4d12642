// One forward pass on the ranks of a place.
#pragma once

#include "models/adapters/adapter_set.h"
#include "models/transformer.h"
#include "tests/golden_runner/on_ranks.h"

namespace tessera::golden {

// The head's result for the whole image, equal on every rank, every part of the input computed here. `adapters` are
// this rank's part.
at::Tensor RunOnMesh(const models::Transformer& transformer, const models::TransformerInput& input,
                     const RankPlace& place, models::SharedAdapters adapters = nullptr);

}  // namespace tessera::golden
