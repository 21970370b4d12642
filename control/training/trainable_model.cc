#include "control/training/trainable_model.h"

#include "absl/strings/str_cat.h"
#include "control/model/model_description.h"
#include "control/training/config.h"

namespace tessera::control {

absl::Status CheckTrainable(const PictureRules& pictures) {
  if (pictures.use == PictureInput::kFill) {
    return absl::InvalidArgumentError(
        "model is FLUX.1 Fill, which is trained on pictures with masks; datasets have no masks, so train a model that "
        "makes images from text or edits pictures");
  }
  return absl::OkStatus();
}

absl::Status CheckDistillation(const TrainConfig& config, const ModelDescription& model) {
  const bool has_assistant = !config.train.assistant_adapter.empty();
  if (!model.is_distilled()) {
    return has_assistant ? absl::InvalidArgumentError(
                               "train.assistant_adapter is set, and the model is not distilled; "
                               "remove the key, or train the distilled model")
                         : absl::OkStatus();
  }
  if (has_assistant || config.train.break_distillation) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "model is distilled to ", model.default_steps, " steps, which training undoes; train ", model.base_model,
      " in its place, ",
      config.network.type == NetworkType::kLora ? "set train.assistant_adapter to the adapter that was made for this, "
                                                : "",
      "or consent with train.break_distillation: true"));
}

absl::Status CheckStorage(const TrainConfig& config, const ModelDescription& model) {
  const std::string stored = QuantizationOf(model);
  if (config.network.type != NetworkType::kFull || stored.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("model has weights in ", stored,
                                                 ", which full fine-tuning cannot change; train the model's files in "
                                                 "bf16, or an adapter with network.type: lora"));
}

}  // namespace tessera::control
