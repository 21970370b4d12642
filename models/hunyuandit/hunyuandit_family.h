// HunyuanDiT v1.1 and v1.2 as whole models: BERT, mT5, the transformer and an autoencoder.
#pragma once

#include <memory>

#include "models/families/family.h"

namespace tessera {

absl::StatusOr<FamilyDescription> DescribeHunyuanDiT(const ModelFolder& folder);
absl::StatusOr<std::unique_ptr<Family>> LoadHunyuanDiT(const ModelFolder& folder, const LoadOptions& options);

}  // namespace tessera
