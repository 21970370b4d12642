// PromptRequest is what a family needs of a job to encode its prompts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "control/parameters/prompt_options.h"
#include "models/adapters/adapter_set.h"
#include "models/text_encoders/prompt_pictures.h"

namespace tessera::models {

struct PromptRequest {
  std::string prompt;  // valid UTF-8
  std::optional<std::string> negative_prompt;
  control::PromptOptions options;
  bool clean_caption = false;
  int64_t max_sequence_length = 0;  // in tokens, including the end token
  double guidance_scale = 1;
  int64_t height = 0;  // pixels of the generated image
  int64_t width = 0;
  SharedPromptPictures pictures = nullptr;  // that the prompts hold; null if the model reads none
  SharedAdapters adapters = nullptr;        // the text encoders use their parts of it
};

}  // namespace tessera::models
