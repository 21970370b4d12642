// What an image file says of its making, and the way back from it.
#pragma once

#include <string>

#include "control/commands.h"
#include "parallel/plan/layout.h"
#include "server/api/generation_request.h"
#include "server/image/parameters_text.h"

namespace tessera::server {

inline constexpr char kProgramVersion[] = "tessera " TESSERA_VERSION;

// `asked` as it was sent, but for what of it has no effect (server/api/unused_parameters.h), which is not recorded;
// `sampler` as the worker named it. The model is recorded by name and digest, not by path. What decides the last bits
// of an image, beside its request, is the layout that made it and, on a CPU, the instruction set.
ImageParameters MetadataOf(const control::JobParameters& asked, const std::string& sampler,
                           const std::string& model_name, const control::ModelDescription& model,
                           const control::LoadParameters& placement, const parallel::Layout& layout);

// The request that makes the image again.
GenerationRequest RequestOf(const ImageParameters& metadata);

}  // namespace tessera::server
