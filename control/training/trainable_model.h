// CheckTrainable says which models can be trained. Pure.
#pragma once

#include "absl/status/status.h"
#include "control/parameters/picture_input.h"

namespace tessera::control {

// INVALID_ARGUMENT for models whose training needs more than images and captions: FLUX.1 Fill, FLUX.1 Kontext and
// Qwen-Image-Edit. `pictures` is ModelDescription::pictures.
absl::Status CheckTrainable(const PictureRules& pictures);

}  // namespace tessera::control
