// The prompts of Qwen-Image-Edit and Edit-Plus: the template of the reference pipelines, which holds the pictures.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "models/text_encoders/text_plan.h"

namespace tessera::models {

// What a pipeline makes images from, besides the prompt.
enum class Editing {
  kNone,
  kOnePicture,  // QwenImageEditPipeline
  kPictures,    // QwenImageEditPlusPipeline, which numbers them
};

inline Editing EditingOf(std::string_view pipeline) {
  if (pipeline == "QwenImageEditPipeline") return Editing::kOnePicture;
  return pipeline == "QwenImageEditPlusPipeline" ? Editing::kPictures : Editing::kNone;
}

// Returns the plan of a prompt with `count` pictures. The states of the system's message are dropped, those of the
// pictures are kept.
inline TextPlan EditPlan(Editing editing, size_t count) {
  TextPlan plan{
      .before =
          "<|im_start|>system\nDescribe the key features of the input image (color, shape, size, texture, objects, "
          "background), then explain how the user's text instruction should alter or modify the image. Generate a new "
          "image that meets the user's requirements while maintaining consistency with the original input where "
          "appropriate.<|im_end|>\n<|im_start|>user\n",
      .after = "<|im_end|>\n<|im_start|>assistant\n",
      .dropped = 64};
  for (size_t picture = 1; picture <= count; ++picture) {
    if (editing == Editing::kPictures) absl::StrAppend(&plan.before, "Picture ", picture, ": ");
    absl::StrAppend(&plan.before, "<|vision_start|>", kPictureToken, "<|vision_end|>");
  }
  return plan;
}

}  // namespace tessera::models
