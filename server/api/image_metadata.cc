#include "server/api/image_metadata.h"

#include "base/utf8.h"
#include "server/api/unused_parameters.h"

namespace tessera {
namespace {

// What differs from its default; the rest is left to a model that may not read it.
void SetOptions(const PromptOptions& options, GenerationRequest& request) {
  const PromptOptions usual;
  request.prompt_2 = options.prompt_2;
  request.prompt_3 = options.prompt_3;
  request.negative_prompt_2 = options.negative_prompt_2;
  request.negative_prompt_3 = options.negative_prompt_3;
  if (options.true_cfg_scale != usual.true_cfg_scale) request.true_cfg_scale = options.true_cfg_scale;
  if (options.guidance_rescale != usual.guidance_rescale) request.guidance_rescale = options.guidance_rescale;
  if (options.clip_skip != usual.clip_skip) request.clip_skip = options.clip_skip;
  const SkipLayerGuidance& skip_layers = options.skip_layers;
  request.skip_layers.assign(skip_layers.layers.begin(), skip_layers.layers.end());
  if (skip_layers.scale != usual.skip_layers.scale) request.skip_layer_scale = skip_layers.scale;
  if (skip_layers.start != usual.skip_layers.start) request.skip_layer_start = skip_layers.start;
  if (skip_layers.stop != usual.skip_layers.stop) request.skip_layer_stop = skip_layers.stop;
  const OriginalSize& size = options.original_size;
  if (size.width != 0) request.original_width = size.width;
  if (size.height != 0) request.original_height = size.height;
  if (size.crop_top != 0) request.crop_top = size.crop_top;
  if (size.crop_left != 0) request.crop_left = size.crop_left;
}

}  // namespace

ImageParameters MetadataOf(const JobParameters& asked, const std::string& sampler, const std::string& model_name,
                           const ModelDescription& model, const LoadParameters& placement, const Layout& layout) {
  JobParameters job = asked;
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
  metadata.model = ReplaceInvalidUtf8(model_name);
  metadata.model_digest = model.digest;
  metadata.noise = job.noise;
  metadata.dtype = placement.dtype;
  metadata.device = placement.device;
  metadata.layout = LayoutText(layout);
  if (placement.device == "cpu") metadata.instruction_set = model.instruction_set;
  const LoadParameters usual;
  if (placement.text_encoders != usual.text_encoders) metadata.text_encoders = PlacementName(placement.text_encoders);
  if (placement.autoencoder != usual.autoencoder) metadata.autoencoder = PlacementName(placement.autoencoder);
  if (model.default_clean_caption) metadata.clean_caption = job.clean_caption;
  metadata.resolution_binning = job.resolution_binning;
  if (job.max_sequence_length > 0) metadata.max_sequence_length = job.max_sequence_length;
  metadata.options = job.options;
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
  SetOptions(metadata.options, request);
  return request;
}

}  // namespace tessera
