#include "server/scheduling/cost_model.h"

#include <algorithm>
#include <cmath>

#include "control/step_memory.h"

namespace tessera::server {
namespace {

// A transformer block of width w has about 12 w² parameters: 4 w² in attention and 8 w² in an MLP that is four times as
// wide.
constexpr double kParametersPerBlock = 12;
// Operations per pixel and parameter of an autoencoder with Stable Diffusion's channel layout, and its number of
// parameters. The channel counts of other autoencoders scale with the square root of their parameters.
constexpr double kDecoderFlopsPerParameter = 0.03;
constexpr double kDecoderParameters = 84e6;
// Values of a pixel that are alive at once in that plan: at full resolution the first residual reads 256 channels and
// makes 128, with its branch, its shortcut and their sum. Small autoencoders have few blocks, and 32 channels there.
constexpr double kDecoderValues = 256 + 3 * 128;
constexpr double kLeastDecoderValues = kDecoderValues / 4;

double Parameters(const control::ModelDescription& model, control::ComponentRole role) {
  for (const control::ModelComponent& candidate : model.components) {
    if (candidate.role == role) return static_cast<double>(candidate.parameters);
  }
  return 0;
}

double Tokens(const ModelCost& cost, const ShapeClass& shape) {
  return std::ceil(shape.height / cost.pixels_per_token) * std::ceil(shape.width / cost.pixels_per_token);
}

double HostDecoderValues(double parameters) {
  if (parameters == 0) return 0;  // there is no decoder
  return std::max(kDecoderValues * std::sqrt(parameters / kDecoderParameters), kLeastDecoderValues);
}

double Pixels(const ShapeClass& shape) { return static_cast<double>(shape.height) * shape.width; }

}  // namespace

ModelCost CostOf(const control::ModelDescription& model, int32_t element_bytes) {
  const double blocks = std::max(1, model.blocks);
  const double parameters = std::max(1.0, Parameters(model, control::ComponentRole::kTransformer));
  const double decoder = Parameters(model, control::ComponentRole::kAutoencoder);
  const double width = std::sqrt(parameters / (kParametersPerBlock * blocks));
  return {.flops_per_token = 2 * parameters,
          .flops_per_token_pair = 4 * blocks * width,
          .flops_per_pixel = kDecoderFlopsPerParameter * decoder,
          .pixels_per_token = static_cast<double>(std::max(1, model.size_multiple)),
          .bytes_per_token = control::kLiveWidths * width * element_bytes,
          .bytes_per_row = control::kModulationWidths * control::kModulatedSteps * blocks * width * element_bytes,
          // As the worker plans its memory (control/step_memory.h), so that what it has loaded for is not refused.
          .bytes_per_decoded_pixel =
              control::kDecoderValuesPerPixel * std::sqrt(decoder / kDecoderParameters) * element_bytes,
          .host_bytes_per_decoded_pixel = HostDecoderValues(decoder) * element_bytes};
}

ShapeClass ShapeOf(const std::string& name, const control::ModelDescription& model,
                   const control::JobParameters& parameters) {
  const control::PromptOptions& options = parameters.options;
  // A model with the true CFG scale option takes its guidance scale as an input and needs no second branch for it.
  const bool takes_true_cfg = std::find(model.options.begin(), model.options.end(),
                                        control::prompt_option::kTrueCfgScale) != model.options.end();
  const bool guided = (takes_true_cfg ? options.true_cfg_scale : parameters.guidance_scale) > 1;
  const std::vector<int32_t>& skipped = options.skip_layers.layers;
  return {.model = name,
          .height = parameters.height,
          .width = parameters.width,
          .rows = 1 + (guided ? 1 : 0) + (skipped.empty() ? 0 : 1),
          .skipped_layers = skipped,
          .guidance_rescaled = options.guidance_rescale > 0,
          .resolution_binned = parameters.resolution_binning,
          .adapters = control::AdapterKey(parameters.adapters)};
}

double StepFlops(const ModelCost& cost, const ShapeClass& shape) {
  const double tokens = Tokens(cost, shape);
  return shape.rows * (tokens * cost.flops_per_token + tokens * tokens * cost.flops_per_token_pair);
}

double DecodeFlops(const ModelCost& cost, const ShapeClass& shape) { return Pixels(shape) * cost.flops_per_pixel; }

double PeakBytes(const ModelCost& cost, const ShapeClass& shape, int32_t tasks, const GroupShare& share) {
  // The branches are divided over the cfg axis, and the rank with the most rows counts; tensor shards divide the wide
  // activations.
  const double rows = std::ceil(static_cast<double>(shape.rows) / share.cfg);  // of one task
  const double tokens = std::ceil(Tokens(cost, shape) / share.sequence);
  const double step = (share.images_share_passes ? tasks : 1) * rows * tokens * cost.bytes_per_token / share.tensor +
                      tasks * rows * cost.bytes_per_row / share.pipe;
  // One image is decoded at a time, in bands over all ranks.
  const double ranks = static_cast<double>(share.sequence) * share.tensor * share.cfg * share.pipe;
  const double bytes_per_pixel =
      share.most_band_bytes > 0 ? cost.host_bytes_per_decoded_pixel : cost.bytes_per_decoded_pixel;
  const double decode = Pixels(shape) * bytes_per_pixel / ranks;
  return cost.fixed_bytes + std::max(step, decode + std::min(decode, share.most_band_bytes));
}

}  // namespace tessera::server
