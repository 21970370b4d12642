// Resample returns a part of a picture at another size. It uses the Lanczos filter with three lobes, widened by the
// reduction factor to prevent aliasing (Pillow's LANCZOS). Unlike Pillow it rounds only once, after both passes; Resize
// (control/pictures/fit_picture.h) has Pillow's bytes. The same input gives the same bytes on every machine. Pure.
#pragma once

#include "control/pictures/picture_frames.h"

namespace tessera::control {

// A rectangle of a picture in pixels, which need not be whole numbers. It lies within the picture and its area is not
// zero.
struct PictureBox {
  double left = 0;
  double top = 0;
  double right = 0;
  double bottom = 0;

  bool operator==(const PictureBox&) const = default;
};

// The largest rectangle with the aspect ratio out_width : out_height within width x height. (focus_x, focus_y) divides
// the remaining margins: (0.5, 0.5) centres the rectangle, (0, 0) puts it at the left and top. All sizes are at least
// 1.
PictureBox CoverBox(int width, int height, int out_width, int out_height, double focus_x = 0.5, double focus_y = 0.5);

// Resamples that part of an RGB picture to width x height, both at least 1.
Frames Resample(const Frames& image, const PictureBox& box, int width, int height);

}  // namespace tessera::control
