// Whether an adapter's file fits a model, from what the model's description says of its matrix products.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "control/model_description.h"
#include "models/adapters/plan/adapter_files.h"

namespace tessera::server {

// INVALID_ARGUMENT for what workers would refuse, naming the adapter, `name`, and the tensor or the module. A
// description without products says nothing, and so does an answer from it: then the workers alone refuse.
absl::StatusOr<models::AdapterOrigin> CheckAdapterFits(const std::string& path, const std::string& name,
                                                       const control::ModelDescription& model);

}  // namespace tessera::server
