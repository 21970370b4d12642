// What an image file says of its making, and the way back from it.
#pragma once

#include <string>

#include "control/job_parameters.h"
#include "control/load_parameters.h"
#include "control/model_description.h"
#include "parallel/plan/layout.h"
#include "server/api/generation_request.h"
#include "server/image/parameters_text.h"

namespace tessera::server {

inline constexpr char kProgramVersion[] = "tessera " TESSERA_VERSION;

// What made an image.
struct ImageOrigins {
  std::string sampler;     // as the worker named it
  std::string model_name;  // recorded together with the digests, in place of the path
  const control::ModelDescription& model;
  const control::LoadParameters& placement;
  parallel::Layout layout;
  std::string weights;  // Loaded::contents; empty: not known
};

// `asked` as it was sent, but for what of it has no effect (server/api/unused_parameters.h), which is not recorded.
// What decides the last bits of an image, beside its request and its weights, is the layout that made it and, on a CPU,
// the instruction set.
ImageParameters MetadataOf(const control::JobParameters& asked, const ImageOrigins& origins);

// The request that makes the image again.
GenerationRequest RequestOf(const ImageParameters& metadata);

}  // namespace tessera::server
