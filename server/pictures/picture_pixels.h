// Pure functions on the pixels of decoded pictures. Frames have 3 channels (RGB) or 4 (RGB and straight alpha), 8 bits
// each, in any number of frames.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "control/pictures/picture_frames.h"

namespace tessera::server {

// Returns the frames with 3 channels, composited on white: each value is (v * a + 255 * (255 - a)) / 255, rounded to
// the nearest integer. Frames without alpha are returned unchanged.
[[nodiscard]] control::Frames OnWhite(control::Frames frames);

// Returns the frames with 3 channels, with the colours that transparent pixels have in the file.
[[nodiscard]] control::Frames DropAlpha(control::Frames frames);

// Returns the mask that an alpha channel means: 255 - a in each of 3 channels, so that transparent pixels (255) are the
// ones to edit. Frames without alpha give a mask of zeros.
[[nodiscard]] control::Frames MaskOfAlpha(control::Frames frames);

// Returns one frame as displayed. `orientation` is EXIF's value, 1 to 8; other values return it unchanged.
[[nodiscard]] control::Frames Oriented(control::Frames frame, int orientation);

// Returns the form in which a caller's picture is stored: the bytes of a PNG of 8-bit RGB without interlacing and
// without any metadata. Equal pixels give equal bytes. INVALID_ARGUMENT for several frames and for frames with alpha.
[[nodiscard]] absl::StatusOr<std::string> EncodeStoredPicture(const control::Frames& frame);

}  // namespace tessera::server
