#include "control/pictures/mask.h"

#include <cstddef>

#include "absl/status/status.h"
#include "base/macros/planted.h"
#include "base/macros/status_macros.h"

namespace tessera::control {
namespace {

Frames BlankGray(int width, int height) {
  Frames gray{.width = width, .height = height, .channels = 1, .bytes = {}};
  gray.bytes.resize(static_cast<size_t>(width) * static_cast<size_t>(height));
  return gray;
}

absl::Status CheckGray(const Frames& mask) {
  RETURN_IF_ERROR(CheckFrame(mask, "the mask"));
  return mask.channels == 1 ? absl::OkStatus() : absl::InvalidArgumentError("the mask must be gray");
}

}  // namespace

absl::StatusOr<Frames> ToGray(const Frames& picture) {
  RETURN_IF_ERROR(CheckFrame(picture, "the picture"));
  if (picture.channels == 1) return picture;
  Frames gray = BlankGray(picture.width, picture.height);
  const uint8_t* pixel = picture.bytes.data();
  for (uint8_t& value : gray.bytes) {
    value = static_cast<uint8_t>((19595u * pixel[0] + 38470u * pixel[1] + 7471u * pixel[2] + 32768u) >> 16);
    pixel += 3;
  }
  return gray;
}

absl::StatusOr<Frames> BinarizeMask(const Frames& gray) {
  RETURN_IF_ERROR(CheckGray(gray));
  Frames binary = gray;
  for (uint8_t& value : binary.bytes) value = (value >= 128) != base::Planted("mask_inverted") ? 1 : 0;
  return binary;
}

absl::StatusOr<Frames> PrepareMask(const Frames& mask, int width, int height, FitMode mode) {
  ASSIGN_OR_RETURN(const Frames fitted, FitPicture(mask, width, height, mode));
  ASSIGN_OR_RETURN(const Frames gray, ToGray(fitted));
  return BinarizeMask(gray);
}

}  // namespace tessera::control
