// The bounds of a picture's sides, which several models share. Pure.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "control/pictures/picture.h"

namespace tessera::control {

// Whether `side` is between `least` and kMaxPictureSide; it may be no whole number yet.
inline bool IsPictureSide(double side, int least) { return side >= least && side <= kMaxPictureSide; }

// INVALID_ARGUMENT, in words that follow the picture's name: its size, and what is valid.
inline absl::Status WrongPictureSize(const PictureSize& picture, const std::string& valid) {
  return absl::InvalidArgumentError(absl::StrCat(" has ", picture.width, "x", picture.height, " pixels; ", valid));
}

// Returns that error unless both sides are pixels from `least` to kMaxPictureSide.
inline absl::Status CheckPictureSides(const PictureSize& picture, int least) {
  if (IsPictureSide(picture.width, least) && IsPictureSide(picture.height, least)) return absl::OkStatus();
  return WrongPictureSize(picture, absl::StrCat("valid are sides of ", least, " to ", kMaxPictureSide));
}

}  // namespace tessera::control
