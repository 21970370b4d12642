// What an image in the making takes of a device beside the model's weights.
#pragma once

#include <cstdint>

#include "control/placement.h"
#include "models/families/family_description.h"
#include "parallel/plan/mesh.h"

namespace tessera::runtime {

// Bytes on each rank, of one image of the model's own size: activations of its step and modulations of its steps, or
// the decoder's activations, whichever is more. An estimate, as the front end's of the same (control/step_memory.h).
int64_t RunBytes(const models::FamilyDescription& model, control::Dtype dtype, const parallel::Mesh& mesh);

}  // namespace tessera::runtime
