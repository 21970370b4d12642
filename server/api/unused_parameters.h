// What of valid parameters has no effect on an image: the model does not read it, or another parameter switches it off.
// One rule for every option and every edge: the user is told, and no picture says that it was made with it. What a
// model can never read is refused by the validator (server/api/generation_request.h) where the model's description
// tells.
#pragma once

#include <string>
#include <vector>

#include "control/job_parameters.h"
#include "control/model_description.h"

namespace tessera::server {

// Puts back to its default what has no effect. One sentence for the user about each that was not the default.
std::vector<std::string> DropUnusedParameters(control::JobParameters& job, const control::ModelDescription& model);

// Whether the model takes a guidance scale: one that was distilled takes none, and its default is 0.
bool TakesGuidance(const control::ModelDescription& model);

}  // namespace tessera::server
