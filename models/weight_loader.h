// Fills a component's parameters from its weight files.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "models/param_table.h"
#include "models/weights/weight_folder.h"

namespace tessera {

// Reads each tensor once, straight into its place where the stored type and device are those of the table, else
// through a buffer of at most 16 MiB; fp16 and bf16 become fp32 without rounding. InvalidArgument lists ALL tensors
// that are missing, unexpected or misshapen, before anything is read; DataLoss when a file ends early.
absl::Status LoadWeights(const WeightFolder& folder, const ParamTable& table, const std::string& component);

}  // namespace tessera
