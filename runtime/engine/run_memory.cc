#include "runtime/engine/run_memory.h"

#include <algorithm>

#include "control/prompt_options.h"
#include "control/step_memory.h"

namespace tessera::runtime {

int64_t RunBytes(const models::FamilyDescription& model, control::Dtype dtype, const parallel::Mesh& mesh) {
  const auto divided = [&](int64_t count, parallel::Axis axis) {
    return (count + mesh.size(axis) - 1) / mesh.size(axis);
  };
  // A model that has the option of a true CFG scale takes the guidance scale as an input and needs no second branch for
  // it.
  const bool takes_true_cfg =
      std::ranges::find(model.options, control::prompt_option::kTrueCfgScale) != model.options.end();
  const int64_t rows = divided(model.default_guidance_scale > 1 && !takes_true_cfg ? 2 : 1, parallel::Axis::kCfg);
  const int64_t side = std::max<int64_t>(model.token_side, 1);
  const int64_t pixels = model.default_height * model.default_width;
  const int64_t tokens =
      divided(divided(pixels / (side * side) + model.text_tokens, parallel::Axis::kRing), parallel::Axis::kUlysses);
  const int64_t element_bytes = control::ElementBytes(dtype), width = model.exchange.width;
  const int64_t activations = divided(tokens * control::kLiveWidths, parallel::Axis::kTensor) * width;
  const int64_t modulations =
      divided(model.blocks, parallel::Axis::kPipe) * control::kModulationWidths * control::kModulatedSteps * width;
  const int64_t decoded = pixels * control::kDecoderValuesPerPixel / mesh.world_size();
  return element_bytes * std::max(rows * (activations + modulations), decoded);
}

}  // namespace tessera::runtime
