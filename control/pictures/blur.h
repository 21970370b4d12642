// GaussianBlur softens a mask as Pillow's GaussianBlur does: by three box filters along each axis.
#pragma once

#include "absl/status/statusor.h"
#include "control/pictures/picture_frames.h"

namespace tessera::control {

inline constexpr float kMaxBlurRadius = 1024;

// `radius` is the standard deviation in pixels; 0 returns the picture. Each of the filters has a width that need not be
// a whole number and is rounded to 8 bits; the rows are filtered first. The time does not depend on the radius.
// InvalidArgument unless 0 <= radius <= kMaxBlurRadius, and for pictures that control/pictures/fit_picture.h refuses.
absl::StatusOr<Frames> GaussianBlur(const Frames& picture, float radius);

}  // namespace tessera::control
