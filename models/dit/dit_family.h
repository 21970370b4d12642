// DiT as a whole model: classes instead of prompts, the transformer and an autoencoder.
#pragma once

#include <memory>

#include "models/families/family.h"

namespace tessera {

absl::StatusOr<FamilyDescription> DescribeDit(const ModelFolder& folder);
absl::StatusOr<std::unique_ptr<Family>> LoadDit(const ModelFolder& folder, const LoadOptions& options);

}  // namespace tessera
