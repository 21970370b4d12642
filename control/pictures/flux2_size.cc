#include "control/pictures/flux2_size.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/macros/status_macros.h"
#include "control/pictures/picture_sides.h"

namespace tessera::control {
namespace {

constexpr int kFlux2Multiple = 16;

int RoundedDown(int side) { return std::max(side / kFlux2Multiple, 1) * kFlux2Multiple; }

}  // namespace

PictureSize Flux2ScaledSize(const PictureSize& picture) {
  const int64_t area = int64_t{picture.width} * picture.height;
  if (area <= kFlux2Area) return picture;
  const double scale = std::sqrt(static_cast<double>(kFlux2Area) / static_cast<double>(area));
  return {.width = std::max(static_cast<int>(picture.width * scale), 1),
          .height = std::max(static_cast<int>(picture.height * scale), 1)};
}

absl::Status CheckFlux2Reference(const PictureSize& picture) {
  RETURN_IF_ERROR(CheckPictureSides(picture, kFlux2LeastSide));
  const auto [least, most] = std::minmax(picture.width, picture.height);
  if (int64_t{most} > int64_t{least} * kFlux2MostRatio) {
    return WrongPictureSize(picture, absl::StrCat("one side may be at most ", kFlux2MostRatio, " times the other"));
  }
  return absl::OkStatus();
}

absl::StatusOr<ReferenceSize> Flux2ReferenceSize(const PictureSize& picture) {
  RETURN_IF_ERROR(CheckPictureSides(picture, 1));
  const PictureSize scaled = Flux2ScaledSize(picture);
  const PictureSize read = {.width = scaled.width / kFlux2Multiple * kFlux2Multiple,
                            .height = scaled.height / kFlux2Multiple * kFlux2Multiple};
  if (read.width == 0 || read.height == 0) {
    return WrongPictureSize(picture, absl::StrCat("after scaling each side must have at least ", kFlux2Multiple));
  }
  return ReferenceSize{.scaled = scaled, .read = read};
}

PictureSize Flux2StartSize(const PictureSize& picture) {
  const PictureSize scaled = Flux2ScaledSize(picture);
  return {.width = RoundedDown(scaled.width), .height = RoundedDown(scaled.height)};
}

}  // namespace tessera::control
