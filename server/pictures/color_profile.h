// Converts pixels from the colour space of an ICC profile to sRGB, with Little CMS. Pure; may be called from any
// thread.
#pragma once

#include <string_view>

#include "absl/status/status.h"
#include "control/pictures/picture_frames.h"
#include "server/image/source_image.h"

namespace tessera::server {

// Converts `image` in place with perceptual intent; alpha stays. Ink (SourceColor::kCmyk) becomes 3 channels. Pixels
// keep their values if the profile means sRGB within one level. INVALID_ARGUMENT: the profile is damaged, of another
// kind than an input, display or output profile, or not for colours of this kind.
[[nodiscard]] absl::Status ConvertToSrgb(std::string_view profile, SourceColor color, control::Frames& image);

// Converts ink to 3 channels without a profile: (255 - K) - (255 - K) * C / 255 for red, rounded, and so on.
void ConvertInkToRgb(control::Frames& image);

}  // namespace tessera::server
