// Functions of masks: gray pictures whose bright pixels are repainted. They compute the bytes of Pillow and diffusers'
// image processor. All are pure and thread-safe, and have the limits and errors of control/pictures/fit_picture.h.
#pragma once

#include "absl/status/statusor.h"
#include "control/pictures/fit_picture.h"
#include "control/pictures/picture_frames.h"

namespace tessera::control {

// Returns the picture with one channel: (19595 R + 38470 G + 7471 B + 32768) / 65536, rounded down. A gray picture
// stays as it is.
absl::StatusOr<Frames> ToGray(const Frames& picture);

// Returns 1 for values of 128 and more, which are repainted, and 0 for the others. The picture is gray.
absl::StatusOr<Frames> BinarizeMask(const Frames& gray);

// A mask as a pipeline receives it at the size of the request: resized in its own channels by `mode`, then gray, then
// binary. In kCrop and kFill a gray mask goes through RGB and back, which changes nothing.
absl::StatusOr<Frames> PrepareMask(const Frames& mask, int width, int height, FitMode mode);

}  // namespace tessera::control
