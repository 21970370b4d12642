// The sizes of FLUX.1 Kontext's pictures, as its pipeline in diffusers chooses them. All functions are pure.
#pragma once

#include <cstdint>
#include <span>

#include "absl/status/statusor.h"
#include "control/pictures/picture.h"

namespace tessera::control {

// The sizes with which Kontext was trained, by increasing width.
std::span<const PictureSize> KontextPreferredSizes();

// Returns the size of the result: `asked` scaled to `max_area` pixels at its aspect ratio, each side rounded to the
// nearest whole number (half to even) and then down to a multiple of 16. InvalidArgument for sizes or areas below 1 or
// above kMaxPictureSide and kMaxPicturePixels, and if a side of the result would be 0 or too large.
absl::StatusOr<PictureSize> KontextResultSize(const PictureSize& asked, int64_t max_area);

// Returns the size to which an input picture is stretched. Its sides are rounded down to multiples of 16; with
// `auto_resize` the result is the preferred size with the aspect ratio nearest to theirs (the narrower one of two
// equally near). InvalidArgument, in words that follow the picture's name, if a side is below 16 or above
// kMaxPictureSide.
absl::StatusOr<PictureSize> KontextPictureSize(const PictureSize& picture, bool auto_resize);

}  // namespace tessera::control
