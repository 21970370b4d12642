// Measures how large a component's weights are and how they are divided among its blocks (control::ComponentWeights),
// from its parameters and the headers of its files.
#pragma once

#include "control/model/weight_sizes.h"
#include "models/loading/param_table.h"

namespace tessera::models {

class WeightFolder;

// Returns a table without memory in which every matrix of a product is known by its form.
ParamTable SizingTable();

// `table` is one of SizingTable to which the whole component was added; `weights` has its tensors under the names of
// the parameters.
control::ComponentWeights SizesOf(const ParamTable& table, const WeightFolder& weights, control::ComponentRole role);

}  // namespace tessera::models
