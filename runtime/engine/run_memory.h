// Predicts the device memory needed to generate one image, excluding weights.
#pragma once

#include <cstdint>

#include "models/families/family_description.h"
#include "parallel/plan/mesh.h"

namespace tessera::control {
enum class DeviceKind : uint8_t;
enum class Dtype;
}  // namespace tessera::control

namespace tessera::runtime {

// Returns the bytes of the rank that needs most for one image of the model's default size (control::PeakBytes).
int64_t RunBytes(const models::FamilyDescription& model, control::Dtype dtype, const parallel::MeshShape& mesh,
                 control::DeviceKind device);

}  // namespace tessera::runtime
