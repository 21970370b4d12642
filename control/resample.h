// A picture in another size: a part of it, resampled by the Lanczos filter of three lobes with its width scaled by the
// reduction, so that nothing folds over (what Pillow calls LANCZOS). The same input gives the same bytes everywhere.
// Pure.
#pragma once

#include "control/image.h"

namespace tessera::control {

// A rectangle of a picture in pixels, which need not be whole; its edges lie within the picture and it has an area.
struct PictureBox {
  double left = 0;
  double top = 0;
  double right = 0;
  double bottom = 0;

  bool operator==(const PictureBox&) const = default;
};

// The largest rectangle of the proportions out_width : out_height within width x height. What is left over lies on both
// sides as (focus_x, focus_y) says: (0.5, 0.5) is the centre, (0, 0) keeps left and top. All sizes are at least 1.
PictureBox CoverBox(int width, int height, int out_width, int out_height, double focus_x = 0.5, double focus_y = 0.5);

// That part of a picture in the size width x height, both at least 1.
Image Resample(const Image& image, const PictureBox& box, int width, int height);

}  // namespace tessera::control
