// The sizes of FLUX.2's pictures, as its pipelines in diffusers choose them. All functions are pure.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "control/pictures/picture.h"
#include "control/pictures/reference_size.h"

namespace tessera::control {

inline constexpr int kFlux2LeastSide = 64;      // of a reference, in pixels
inline constexpr int kFlux2MostRatio = 8;       // of a reference's sides
inline constexpr int64_t kFlux2Area = 1 << 20;  // to which larger pictures are scaled, in pixels

// Returns the size to which a picture of more than kFlux2Area pixels is scaled, with both sides cut to integers;
// smaller pictures keep theirs.
PictureSize Flux2ScaledSize(const PictureSize& picture);

// INVALID_ARGUMENT, in words that follow the picture's name, if a side of a reference is below kFlux2LeastSide or the
// ratio of its sides above kFlux2MostRatio.
absl::Status CheckFlux2Reference(const PictureSize& picture);

// Returns how a reference is brought to size: the largest multiples of 16 are cut out of the scaled picture's middle.
// INVALID_ARGUMENT, in words that follow the picture's name, if a multiple is 0 or a side above kMaxPictureSide.
absl::StatusOr<ReferenceSize> Flux2ReferenceSize(const PictureSize& picture);

// Returns the size of an image that begins from a picture, which is stretched to it: the scaled size, rounded down to
// multiples of 16 of at least 16.
PictureSize Flux2StartSize(const PictureSize& picture);

}  // namespace tessera::control
