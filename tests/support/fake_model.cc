#include "tests/support/fake_model.h"

#include <memory>
#include <utility>

#include "control/model/model_description.h"

namespace tessera {

server::ServedModel FakeModel(const std::string& id) {
  server::ServedModel model;
  model.id = id;
  model.progress = {.state = server::GroupState::kReady, .loaded = 1};
  control::ModelDescription description;
  description.pipeline = "FakePipeline";
  description.family = "fake";
  description.digest = std::string(64, '0');
  description.size_multiple = 16;
  description.min_size = 16;
  description.max_size = 1024;
  description.default_width = description.default_height = 64;
  description.default_steps = 4;
  description.max_steps = 1000;
  description.default_guidance_scale = 4.5;
  description.default_max_sequence_length = 77;
  description.max_sequence_length = 256;
  description.options = {"prompt_2", "true_cfg_scale", "clip_skip", "skip_layers", "original_size"};
  description.default_sampler = "euler";
  description.samplers = {"ddim", "dpmsolver++", "euler"};
  description.heads = 4;
  description.blocks = 4;
  model.description = std::make_shared<const control::ModelDescription>(std::move(description));
  return model;
}

}  // namespace tessera
