// Resize and FitPicture return a picture at another size with the bytes that Pillow 13 and diffusers'
// image processor compute: 8-bit values and integer arithmetic, the same on every machine. All functions are pure
// and thread-safe.
#pragma once

#include "absl/status/statusor.h"
#include "control/pictures/picture_frames.h"

namespace tessera::control {

// How a picture is brought to another aspect ratio.
enum class FitMode {
  kStretch,  // the reference's "default": the aspect ratio is not kept
  kCrop,     // covers the size and is cut around its centre
  kFill,     // fits inside the size; the border continues the picture's edge
};

// A rectangle of whole pixels: left <= x < right, top <= y < bottom.
struct PixelRegion {
  int left = 0;
  int top = 0;
  int right = 0;
  int bottom = 0;

  int width() const { return right - left; }
  int height() const { return bottom - top; }
  bool operator==(const PixelRegion&) const = default;
};

// The functions of control/pictures accept one frame of 1 (gray) or 3 (RGB) channels with sides of 1 to
// kMaxPictureSide and at most kMaxPicturePixels pixels, and return such a frame. Otherwise, also if the size asked for
// exceeds these limits, they return InvalidArgument.

// Pillow's Lanczos with three lobes, widened by the reduction factor: weights of 22 bits, one pass per axis, each
// rounded and clipped to 8 bits. The horizontal pass is the first, except if the height loses more than twice the
// columns that the width loses. An axis that keeps its size is not filtered.
absl::StatusOr<Frames> Resize(const Frames& picture, int width, int height);

// Resizes by `mode`. In kCrop and kFill the side that follows from the aspect ratio is rounded down; InvalidArgument
// if that makes it 0 or larger than kMaxPictureSide.
absl::StatusOr<Frames> FitPicture(const Frames& picture, int width, int height, FitMode mode);

// Cuts a region out. Its part outside the picture is black.
absl::StatusOr<Frames> CutRegion(const Frames& picture, const PixelRegion& region);

// InvalidArgument unless `picture` is a frame as described above and has as many bytes as its shape needs. `what`
// begins the message, as in "the mask".
absl::Status CheckFrame(const Frames& picture, const char* what);

}  // namespace tessera::control
