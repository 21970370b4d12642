// Stable Diffusion 3 and 3.5 as whole models: two CLIP encoders, T5 (optional), the transformer and an autoencoder.
#pragma once

#include <memory>

#include "models/families/family.h"

namespace tessera {

absl::StatusOr<FamilyDescription> DescribeSd3(const ModelFolder& folder);
absl::StatusOr<std::unique_ptr<Family>> LoadSd3(const ModelFolder& folder, const LoadOptions& options);

}  // namespace tessera
