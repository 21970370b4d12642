// Builds the description of a model for a front end, from the model's files and without its weights. LibTorch-free.
#pragma once

#include "absl/status/statusor.h"
#include "models/weights/model_folder.h"
#include "parallel/plan/mesh.h"
#include "runtime/samplers/sampler_config.h"

namespace tessera::control {
enum class DeviceKind : uint8_t;
enum class Dtype;
struct FitQuery;
struct ModelDescription;
}  // namespace tessera::control

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

// Returns the bytes of the rank that needs most for one image of the model's default size (control::PeakBytes).
int64_t RunBytes(const models::FamilyDescription& model, control::Dtype dtype, const parallel::MeshShape& mesh,
                 control::DeviceKind device);

// Returns what control::ChooseFit needs to know about one image of the model's default size; the caller adds which part
// of the model the rank has.
control::FitQuery FitQueryOf(const models::FamilyDescription& model, control::Dtype dtype,
                             const parallel::MeshShape& mesh, control::DeviceKind device);

}  // namespace tessera::runtime
