// Builds the description of a model for a front end, from the model's files and without its weights. LibTorch-free.
#pragma once

#include "absl/status/statusor.h"
#include "models/weights/model_folder.h"
#include "runtime/samplers/sampler_config.h"

namespace tessera::control {
struct ModelDescription;
}

namespace tessera::models {
struct FamilyDescription;
}

namespace tessera::runtime {

// Reads scheduler/scheduler_config.json of the model.
absl::StatusOr<SamplerConfig> ReadSamplerConfig(const models::ModelFolder& folder, std::vector<std::string>& warnings);

// Reads and checks the headers of all weight files.
absl::StatusOr<control::ModelDescription> DescribeModel(const models::ModelFolder& folder, std::string_view family,
                                                        const models::FamilyDescription& description,
                                                        const SamplerConfig& sampler);

}  // namespace tessera::runtime
