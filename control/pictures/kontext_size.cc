#include "control/pictures/kontext_size.h"

#include <cmath>
#include <limits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/macros/status_macros.h"
#include "control/pictures/picture_sides.h"

namespace tessera::control {
namespace {

constexpr int kMultiple = 16;

constexpr PictureSize kPreferredSizes[] = {
    {672, 1568}, {688, 1504}, {720, 1456},  {752, 1392}, {800, 1328}, {832, 1248},
    {880, 1184}, {944, 1104}, {1024, 1024}, {1104, 944}, {1184, 880}, {1248, 832},
    {1328, 800}, {1392, 752}, {1456, 720},  {1504, 688}, {1568, 672},
};

// Rounds half to even, which is the default mode of nearbyint, then down.
double RoundedSide(double side) { return std::floor(std::nearbyint(side) / kMultiple) * kMultiple; }

}  // namespace

std::span<const PictureSize> KontextPreferredSizes() { return kPreferredSizes; }

absl::StatusOr<PictureSize> KontextResultSize(const PictureSize& asked, int64_t max_area) {
  if (!IsPictureSide(asked.width, 1) || !IsPictureSide(asked.height, 1) || max_area < 1 ||
      max_area > kMaxPicturePixels) {
    return absl::InvalidArgumentError(absl::StrCat("a result of ", asked.width, "x", asked.height, " in an area of ",
                                                   max_area, " pixels is not valid; valid are sides of 1 to ",
                                                   kMaxPictureSide, " and areas of 1 to ", kMaxPicturePixels));
  }
  const double ratio = static_cast<double>(asked.width) / asked.height;
  const double area = static_cast<double>(max_area);
  const double width = RoundedSide(std::sqrt(area * ratio)), height = RoundedSide(std::sqrt(area / ratio));
  if (!IsPictureSide(width, kMultiple) || !IsPictureSide(height, kMultiple)) {
    return absl::InvalidArgumentError(absl::StrCat("the aspect ratio ", asked.width, ":", asked.height,
                                                   " needs a side of less than ", kMultiple, " or more than ",
                                                   kMaxPictureSide, " pixels in an area of ", max_area, " pixels"));
  }
  return PictureSize{.width = static_cast<int>(width), .height = static_cast<int>(height)};
}

absl::StatusOr<PictureSize> KontextPictureSize(const PictureSize& picture, bool auto_resize) {
  RETURN_IF_ERROR(CheckPictureSides(picture, kMultiple));
  const PictureSize rounded{.width = picture.width / kMultiple * kMultiple,
                            .height = picture.height / kMultiple * kMultiple};
  if (!auto_resize) return rounded;
  const double ratio = static_cast<double>(rounded.width) / rounded.height;
  PictureSize nearest;
  double least = std::numeric_limits<double>::infinity();
  for (const PictureSize& size : kPreferredSizes) {
    const double distance = std::abs(ratio - static_cast<double>(size.width) / size.height);
    if (distance < least) {
      least = distance;
      nearest = size;
    }
  }
  return nearest;
}

}  // namespace tessera::control
