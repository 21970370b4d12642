#include "server/scheduling/shape_class.h"

#include "control/model/model_cost.h"
#include "control/parameters/job_parameters.h"

namespace tessera::server {

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
          .adapters = control::AdapterKey(parameters.adapters)};
}

}  // namespace tessera::server
