// The pictures of a prompt, as far as it is only passed on; models/text_encoders/picture_processor.h has the rest.
#pragma once

#include <memory>

namespace tessera::models {

struct PromptPictures;
using SharedPromptPictures = std::shared_ptr<const PromptPictures>;

}  // namespace tessera::models
