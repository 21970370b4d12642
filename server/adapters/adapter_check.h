// Checks whether an adapter's file fits a model, by the matrix products in the model's description.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "models/adapters/plan/adapter_files.h"

namespace tessera::control {
struct ModelDescription;
}

namespace tessera::server {

// INVALID_ARGUMENT for an adapter that workers would refuse, naming the adapter, `name`, and the tensor or the module.
// A description without products allows no check, and OK then proves nothing: only the workers can refuse the adapter.
absl::StatusOr<models::AdapterOrigin> CheckAdapterFits(const std::string& path, const std::string& name,
                                                       const control::ModelDescription& model);

}  // namespace tessera::server
