// Lists the model families by the pipeline class in model_index.json.
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "models/families/family.h"

namespace tessera::models {

struct FamilyDescription;

struct FamilyEntry {
  std::string_view pipeline;  // _class_name of model_index.json
  std::string_view family;
  absl::StatusOr<FamilyDescription> (*describe)(const ModelFolder& folder);
  absl::StatusOr<std::unique_ptr<Family>> (*load)(const ModelFolder& folder, const LoadOptions& options);
};

// The functions of each family: Describe… reads a model's description, Load… loads the model.
absl::StatusOr<FamilyDescription> DescribeDit(const ModelFolder& folder);
absl::StatusOr<FamilyDescription> DescribeFlux(const ModelFolder& folder);
absl::StatusOr<FamilyDescription> DescribeFlux2(const ModelFolder& folder);
absl::StatusOr<FamilyDescription> DescribeFlux2Klein(const ModelFolder& folder);
absl::StatusOr<FamilyDescription> DescribeFlux2KleinKv(const ModelFolder& folder);
absl::StatusOr<FamilyDescription> DescribeHunyuanDiT(const ModelFolder& folder);
absl::StatusOr<FamilyDescription> DescribePixArt(const ModelFolder& folder);
absl::StatusOr<FamilyDescription> DescribeQwenImage(const ModelFolder& folder);
absl::StatusOr<FamilyDescription> DescribeSd3(const ModelFolder& folder);
absl::StatusOr<FamilyDescription> DescribeZImage(const ModelFolder& folder);
absl::StatusOr<std::unique_ptr<Family>> LoadDit(const ModelFolder& folder, const LoadOptions& options);
absl::StatusOr<std::unique_ptr<Family>> LoadFlux(const ModelFolder& folder, const LoadOptions& options);
absl::StatusOr<std::unique_ptr<Family>> LoadFlux2(const ModelFolder& folder, const LoadOptions& options);
absl::StatusOr<std::unique_ptr<Family>> LoadFlux2Klein(const ModelFolder& folder, const LoadOptions& options);
absl::StatusOr<std::unique_ptr<Family>> LoadFlux2KleinKv(const ModelFolder& folder, const LoadOptions& options);
absl::StatusOr<std::unique_ptr<Family>> LoadHunyuanDiT(const ModelFolder& folder, const LoadOptions& options);
absl::StatusOr<std::unique_ptr<Family>> LoadPixArt(const ModelFolder& folder, const LoadOptions& options);
absl::StatusOr<std::unique_ptr<Family>> LoadQwenImage(const ModelFolder& folder, const LoadOptions& options);
absl::StatusOr<std::unique_ptr<Family>> LoadSd3(const ModelFolder& folder, const LoadOptions& options);
absl::StatusOr<std::unique_ptr<Family>> LoadZImage(const ModelFolder& folder, const LoadOptions& options);

std::span<const FamilyEntry> Families();

// Returns InvalidArgument with the class and the known classes if the class is unknown.
absl::StatusOr<const FamilyEntry*> FindFamily(std::string_view pipeline);

}  // namespace tessera::models
