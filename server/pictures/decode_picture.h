// Decodes a picture: PNG, JPEG or WebP, recognised by content. The server calls this only in the confined process
// (server/pictures/serve_picture.h); PictureDecoder is what its other code calls. The command line calls it for files
// of its user.
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "server/pictures/decoded_picture.h"

namespace tessera::server {

// Returns the first frame of `bytes`. Grey, palette and CMYK become RGB, and 16 bits become 8. A colour profile is
// converted to sRGB with perceptual intent; CMYK without one is converted by ConvertInkToRgb. PNG's gAMA and cHRM are
// ignored. Pure; may be called from any thread.
//
// INVALID_ARGUMENT: not a picture of these formats (the message names formats such as GIF and AVIF), or one with a
// feature or a colour profile that is not supported. DATA_LOSS: damaged or truncated. RESOURCE_EXHAUSTED: larger than
// `limits`, or more pixels than a file this short can contain.
[[nodiscard]] absl::StatusOr<DecodedPicture> DecodePicture(std::string_view bytes, const PictureLimits& limits);

}  // namespace tessera::server
