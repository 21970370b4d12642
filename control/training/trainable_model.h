// CheckTrainable and CheckDistillation say which models can be trained. Pure.
#pragma once

#include "absl/status/status.h"
#include "control/pictures/picture_input.h"

namespace tessera::control {

struct ModelDescription;
struct TrainConfig;

// INVALID_ARGUMENT for FLUX.1 Fill, whose training needs masks. `pictures` is ModelDescription::pictures.
absl::Status CheckTrainable(const PictureRules& pictures);

// INVALID_ARGUMENT for a model that is distilled to few steps, because training it to the usual objective undoes the
// distillation. The message names the model to train in its place. An adapter may be trained with
// train.assistant_adapter, and with train.break_distillation everything may be. An assistant adapter is refused for
// other models, which need none.
absl::Status CheckDistillation(const TrainConfig& config, const ModelDescription& model);

}  // namespace tessera::control
