// PixArt-alpha and PixArt-Sigma as whole models: T5, the transformer and an autoencoder.
#pragma once

#include <memory>

#include "models/families/family.h"

namespace tessera {

absl::StatusOr<FamilyDescription> DescribePixArt(const ModelFolder& folder);
absl::StatusOr<std::unique_ptr<Family>> LoadPixArt(const ModelFolder& folder, const LoadOptions& options);

}  // namespace tessera
