// The table of model families, by the class of the pipeline in model_index.json.
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "models/families/family.h"

namespace tessera {

struct FamilyEntry {
  std::string_view pipeline;  // _class_name of model_index.json
  std::string_view family;
  absl::StatusOr<FamilyDescription> (*describe)(const ModelFolder& folder);
  absl::StatusOr<std::unique_ptr<Family>> (*load)(const ModelFolder& folder, const LoadOptions& options);
};

std::span<const FamilyEntry> Families();

// InvalidArgument names the class and the classes that are known.
absl::StatusOr<const FamilyEntry*> FindFamily(std::string_view pipeline);

}  // namespace tessera
