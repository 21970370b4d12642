// The sizes and the resize with which Qwen-Image-Edit's pipelines and the picture processor of Qwen2.5-VL prepare
// pictures, with the bytes of the reference (diffusers, and transformers with torchvision). All functions are pure and
// thread-safe.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "control/pictures/picture.h"

namespace tessera::control {

struct Frames;  // control/pictures/picture_frames.h

// Returns the size near `area` pixels with the aspect ratio of a picture: both sides are rounded to the nearest
// multiples of 32, half to even. InvalidArgument, in words that follow the picture's name, for sizes and areas below
// 1 or above kMaxPictureSide and kMaxPicturePixels, and if a side of the result would be 0 or too large.
absl::StatusOr<PictureSize> SizeOfArea(const PictureSize& picture, int64_t area);

// The sizes that a vision tower reads.
struct ProcessorLimits {
  int unit = 28;                 // of both sides: the pixels of a token's side
  int64_t min_pixels = 3136;     // 56 x 56
  int64_t max_pixels = 1003520;  // 28 x 28 x 1280
};

// Returns the size at which the vision tower reads a picture: the nearest multiples of the unit, half to even; if their
// product is outside the limits, both sides are scaled by the square root and cut up or down to multiples.
// InvalidArgument, in words that follow the picture's name, for sides below 1 or above kMaxPictureSide, and if one is
// more than 200 times the other.
absl::StatusOr<PictureSize> ProcessorSize(const PictureSize& picture, const ProcessorLimits& limits);

// Returns an RGB picture at another size as torchvision resizes 8-bit pictures with BICUBIC and antialiasing: a = -0.5,
// widened by the reduction factor, weights of at most 15 bits, first the rows and then the columns, each rounded and
// clipped to 8 bits. InvalidArgument unless sides are 1 to kMaxPictureSide with at most kMaxPicturePixels pixels.
absl::StatusOr<Frames> ResizeBicubic(const Frames& picture, int width, int height);

}  // namespace tessera::control
