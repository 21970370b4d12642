// FLUX.1 (dev and schnell) as a whole model: CLIP's pooled output, T5's states, the transformer and an autoencoder.
#pragma once

#include <memory>

#include "models/families/family.h"

namespace tessera {

absl::StatusOr<FamilyDescription> DescribeFlux(const ModelFolder& folder);
absl::StatusOr<std::unique_ptr<Family>> LoadFlux(const ModelFolder& folder, const LoadOptions& options);

}  // namespace tessera
