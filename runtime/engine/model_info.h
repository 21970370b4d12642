// What a front end is told of a model, from its files, without its weights. LibTorch-free.
#pragma once

#include "absl/status/statusor.h"
#include "control/model_description.h"
#include "models/families/family_description.h"
#include "models/weights/model_folder.h"
#include "runtime/samplers/sampler_config.h"

namespace tessera::runtime {

// scheduler/scheduler_config.json of the model.
absl::StatusOr<SamplerConfig> ReadSamplerConfig(const models::ModelFolder& folder, std::vector<std::string>& warnings);

// Headers of all weight files are read and checked.
absl::StatusOr<control::ModelDescription> DescribeModel(const models::ModelFolder& folder, std::string_view family,
                                                        const models::FamilyDescription& description,
                                                        const SamplerConfig& sampler);

}  // namespace tessera::runtime
