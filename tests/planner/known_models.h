// Descriptions of published models, from their configurations on the Hugging Face hub: what a plan is made from,
// without any file of theirs.
#pragma once

#include <string>
#include <vector>

#include "control/model_description.h"

namespace tessera {

// flux, sd3, pixart, hunyuandit, dit, and of video models, whose frames are taken to lie below each other in one tall
// image, hunyuanvideo and consisid (CogVideoX-5B).
control::ModelDescription KnownModel(const std::string& name);

}  // namespace tessera
