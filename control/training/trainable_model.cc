#include "control/training/trainable_model.h"

namespace tessera::control {

absl::Status CheckTrainable(const PictureRules& pictures) {
  if (pictures.use == PictureInput::kFill) {
    return absl::InvalidArgumentError(
        "model is FLUX.1 Fill, which is trained on pictures with masks; datasets have images and captions, so train a "
        "model that makes images from text");
  }
  if (pictures.fit == ReferenceFit::kKontext) {
    return absl::InvalidArgumentError(
        "model is FLUX.1 Kontext, which is trained on pairs of pictures; datasets have images and captions, so train a "
        "model that makes images from text");
  }
  if (PromptHoldsPictures(pictures.fit)) {
    return absl::InvalidArgumentError(
        "model is Qwen-Image-Edit, whose prompts hold pictures; datasets have images and captions, so train "
        "Qwen-Image");
  }
  return absl::OkStatus();
}

}  // namespace tessera::control
