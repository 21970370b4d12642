// Where a model runs, by the name a user gives it.
#pragma once

#include <ATen/ATen.h>

#include <string>

#include "absl/status/statusor.h"

namespace tessera {

// fp64, fp32, bf16.
absl::StatusOr<at::ScalarType> ParseDtype(const std::string& name);

// cpu, cuda, cuda:N. CUDA lives in a plug-in library that is loaded here, on first use; FailedPrecondition says which of
// plug-in, driver and device is missing.
absl::StatusOr<at::Device> OpenDevice(const std::string& name);

}  // namespace tessera
