#include "server/api/image_metadata.h"

#include "base/utf8.h"
#include "control/device.h"
#include "server/api/unused_parameters.h"

namespace tessera::server {
namespace {

// Sets only options that differ from their defaults; other options may be unknown to the model.
void SetOptions(const control::PromptOptions& options, ImageRequest& request) {
  const control::PromptOptions usual;
  const auto set = [&request](const auto& field, const auto& value, const auto& usual_value) {
    if (value == usual_value) return;
    VisitField(field.name, request, [&](const auto&, auto& asked) { CopyValue(value, asked); });
  };
  base::ForEachField(set, options, usual);
}

}  // namespace

ImageParameters MetadataOf(const control::JobParameters& asked, const ImageOrigins& origins) {
  const auto& [sampler, model_name, model, placement, layout, weights] = origins;
  control::JobParameters job = asked;
  DropUnusedParameters(job, model);
  ImageParameters metadata;
  metadata.prompt = job.prompt;
  metadata.negative_prompt = job.negative_prompt;
  metadata.steps = job.steps;
  metadata.sampler = sampler;
  if (TakesGuidance(model)) metadata.guidance_scale = job.guidance_scale;
  metadata.seed = job.seed;
  metadata.width = job.width;
  metadata.height = job.height;
  metadata.model = base::ReplaceInvalidUtf8(model_name);
  metadata.model_digest = model.digest;
  metadata.weights_digest = weights;
  metadata.noise = base::EnumName(job.noise);
  metadata.dtype = base::EnumName(placement.dtype);
  metadata.device = placement.device;
  metadata.layout = parallel::LayoutText(layout);
  if (control::IsDevice(placement.device, control::DeviceKind::kCpu)) metadata.instruction_set = model.instruction_set;
  const control::Placement &used = placement.placement, usual;
  if (used.text_encoders != usual.text_encoders) metadata.text_encoders = base::EnumName(used.text_encoders);
  if (used.autoencoder != usual.autoencoder) metadata.autoencoder = base::EnumName(used.autoencoder);
  if (model.default_clean_caption) metadata.clean_caption = job.clean_caption;
  metadata.resolution_binning = job.resolution_binning;
  if (job.max_sequence_length > 0) metadata.max_sequence_length = job.max_sequence_length;
  metadata.options = job.options;
  metadata.adapters = job.adapters;
  for (control::AdapterUse& adapter : metadata.adapters) adapter.file.clear();
  metadata.version = kProgramVersion;
  return metadata;
}

ImageRequest RequestOf(const ImageParameters& metadata) {
  ImageRequest request;
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
  CopyValue(metadata.adapters, request.loras);
  SetOptions(metadata.options, request);
  return request;
}

}  // namespace tessera::server
