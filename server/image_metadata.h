// What an image file says of its making, and the way back from it.
#pragma once

#include <string>

#include "runtime/commands.h"
#include "server/generation_request.h"
#include "server/image/parameters_text.h"

namespace tessera {

inline constexpr char kProgramVersion[] = "tessera " TESSERA_VERSION;

// `job` as it was sent, `sampler` as the worker named it. The model is recorded by name and digest, not by path.
ImageParameters MetadataOf(const JobParameters& job, const std::string& sampler, const std::string& model_name,
                           const ModelDescription& model, const LoadParameters& placement);

// The request that makes the image again.
GenerationRequest RequestOf(const ImageParameters& metadata);

}  // namespace tessera
