// Removes valid parameters that have no effect on an image, because the model does not read them or another parameter
// switches them off. This one rule covers every option for HTTP, gRPC and the command line: the user gets a warning,
// and the image's metadata does not list the parameter. The validator (server/api/generation_request.h) refuses
// parameters that the model can never read, as far as the model's description states that.
#pragma once

#include <string>
#include <vector>

namespace tessera::control {
struct JobParameters;
struct ModelDescription;
}  // namespace tessera::control

namespace tessera::server {

// Resets parameters without effect to their defaults. Returns one sentence for the user about each that differed.
std::vector<std::string> DropUnusedParameters(control::JobParameters& job, const control::ModelDescription& model);

// Whether the model takes a guidance scale. A distilled model takes none; its default is 0.
bool TakesGuidance(const control::ModelDescription& model);

}  // namespace tessera::server
