#include "server/scheduling/shape_class.h"

#include <algorithm>

#include "control/model/model_cost.h"
#include "control/parameters/job_parameters.h"

namespace tessera::server {
namespace {

EncodedPictures PicturesOf(const control::ModelCost& cost, const control::JobParameters& job,
                           control::ImageSize image) {
  EncodedPictures pictures;
  for (const control::ImageSize& size : control::EncodedSizes(cost, job, image)) {
    const double pixels = static_cast<double>(size.height) * static_cast<double>(size.width);
    pictures.pixels += pixels;
    pictures.largest = std::max(pictures.largest, pixels);
  }
  // FLUX.1 Fill also encodes its picture without what the mask covers; for other models this is an upper bound.
  if (!job.mask.empty()) pictures.pixels *= 2;
  return pictures;
}

}  // namespace

control::ImageWork ShapeClass::work() const {
  return {.size = {.height = height, .width = width}, .text_tokens = text_tokens, .rows = rows};
}

ShapeClass ShapeOf(const std::string& name, const control::ModelCost& cost, const control::JobParameters& parameters) {
  const control::ImageWork work = control::WorkOf(cost, parameters);
  return {.model = name,
          .height = static_cast<int32_t>(work.size.height),
          .width = static_cast<int32_t>(work.size.width),
          .text_tokens = static_cast<int32_t>(work.text_tokens),
          .rows = static_cast<int32_t>(work.rows),
          .skipped_layers = parameters.options.skip_layers.layers,
          .guidance_rescaled = parameters.options.guidance_rescale > 0,
          .resolution_binned = parameters.resolution_binning,
          .adapters = control::AdapterKey(parameters.adapters),
          .pictures = PicturesOf(cost, parameters, work.size)};
}

}  // namespace tessera::server
