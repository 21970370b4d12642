// MaskRegion and OverlayPicture paint only the region around a mask: the region is cut out, painted at the size of the
// request, and put back under the original (diffusers' padding_mask_crop). Both are pure and have the limits and errors
// of control/pictures/fit_picture.h.
#pragma once

#include <optional>

#include "absl/status/statusor.h"
#include "control/pictures/fit_picture.h"
#include "control/pictures/picture_frames.h"

namespace tessera::control {

// Returns the smallest region with all pixels of the mask above 0 (as gray), grown by `padding` pixels on each side
// and then to the aspect ratio width : height of the request, as far as the mask's sides allow. InvalidArgument if no
// pixel is above 0, or if `padding` is negative.
absl::StatusOr<PixelRegion> MaskRegion(const Frames& mask, int width, int height, int padding);

// Lays `original`, with the inverted mask as its opacity, over `painted`. With a region, `painted` is first resized and
// cut (FitMode::kCrop) to it, and black outside; without one it has the size of `original`. `original` and `painted`
// are RGB; the mask has the size of `original`, and its values between 0 and 255 mix both. Equals Pillow's alpha
// compositing with its premultiplied 8-bit values.
absl::StatusOr<Frames> OverlayPicture(const Frames& mask, const Frames& original, const Frames& painted,
                                      const std::optional<PixelRegion>& region);

}  // namespace tessera::control
