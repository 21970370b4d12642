// Estimates the device memory needed to generate one image, excluding weights.
#pragma once

#include <cstdint>

#include "control/placement.h"
#include "models/families/family_description.h"
#include "parallel/plan/mesh.h"

namespace tessera::runtime {

// Returns the bytes on each rank for one image of the model's default size: activations of a step and modulations of
// its steps, or the decoder's activations, whichever is more. It is an estimate, like the front end's
// (control/step_memory.h).
int64_t RunBytes(const models::FamilyDescription& model, control::Dtype dtype, const parallel::Mesh& mesh);

}  // namespace tessera::runtime
