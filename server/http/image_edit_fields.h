// The fields of the forms that OpenAI's clients send to POST /v1/images/edits.
#pragma once

#include "server/http/multipart_form.h"

namespace tessera::server {

inline constexpr size_t kMaxEditPictures = 16;
inline constexpr size_t kMaxEditPictureBytes = size_t{50} << 20;
inline constexpr size_t kMaxEditPromptBytes = 32768;

inline constexpr FormField kImageEditFields[] = {
    {.name = "image", .is_file = true, .most = kMaxEditPictures, .most_bytes = kMaxEditPictureBytes},
    {.name = "image[]", .is_file = true, .most = kMaxEditPictures, .most_bytes = kMaxEditPictureBytes},
    {.name = "mask", .is_file = true, .most_bytes = kMaxEditPictureBytes},
    {.name = "prompt", .most_bytes = kMaxEditPromptBytes},
    {.name = "model"},
    {.name = "n"},
    {.name = "size"},
    {.name = "quality"},
    {.name = "background"},
    {.name = "input_fidelity"},
    {.name = "moderation"},
    {.name = "output_format"},
    {.name = "output_compression"},
    {.name = "partial_images"},
    {.name = "response_format"},
    {.name = "stream"},
    {.name = "user"},
};

}  // namespace tessera::server
