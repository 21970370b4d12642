// Returns descriptions of published models, from their configurations on the Hugging Face hub. A plan can be made from
// them without any model files.
#pragma once

#include <string>
#include <vector>

namespace tessera::control {
struct ModelDescription;
}

namespace tessera {

// `name` is flux, sd3, pixart, hunyuandit, dit, or one of the video models hunyuanvideo and consisid (CogVideoX-5B).
// The frames of a video are treated as one tall image.
control::ModelDescription KnownModel(const std::string& name);

}  // namespace tessera
