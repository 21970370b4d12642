#include "client/image_metadata.h"

#include "client/command.h"
#include "client/model_location.h"
#include "runtime/utf8.h"

namespace tessera {

ImageParameters MetadataOf(const JobParameters& job, const std::string& sampler, const ModelDescription& model,
                           const LoadParameters& placement) {
  ImageParameters metadata;
  metadata.prompt = job.prompt;
  metadata.negative_prompt = job.negative_prompt;
  metadata.steps = job.steps;
  metadata.sampler = sampler;
  metadata.guidance_scale = job.guidance_scale;
  metadata.seed = job.seed;
  metadata.width = job.width;
  metadata.height = job.height;
  metadata.model = ReplaceInvalidUtf8(ModelName(placement.model));
  metadata.model_digest = model.digest;
  metadata.noise = job.noise;
  metadata.dtype = placement.dtype;
  metadata.device = placement.device;
  metadata.clean_caption = job.clean_caption;
  metadata.resolution_binning = job.resolution_binning;
  if (job.max_sequence_length > 0) metadata.max_sequence_length = job.max_sequence_length;
  metadata.version = kProgramVersion;
  return metadata;
}

GenerationRequest RequestOf(const ImageParameters& metadata) {
  GenerationRequest request;
  request.prompt = metadata.prompt;
  request.negative_prompt = metadata.negative_prompt;
  request.width = metadata.width;
  request.height = metadata.height;
  request.steps = metadata.steps;
  request.guidance_scale = metadata.guidance_scale;
  request.seed = metadata.seed;
  request.sampler = metadata.sampler;
  if (!metadata.noise.empty()) request.noise = metadata.noise;
  request.clean_caption = metadata.clean_caption;
  request.resolution_binning = metadata.resolution_binning;
  if (metadata.max_sequence_length.has_value()) request.max_sequence_length = *metadata.max_sequence_length;
  return request;
}

}  // namespace tessera
