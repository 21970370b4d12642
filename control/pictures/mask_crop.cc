#include "control/pictures/mask_crop.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/macros/planted.h"
#include "base/macros/status_macros.h"
#include "control/pictures/mask.h"

namespace tessera::control {
namespace {

// The interval of an axis, first <= i < end.
struct Interval {
  int64_t first = 0;
  int64_t end = 0;
};

// Grows an interval to `wanted` samples, then moves it into [0, size).
Interval Grown(Interval interval, double wanted, int64_t size) {
  const int64_t more = static_cast<int64_t>(wanted - static_cast<double>(interval.end - interval.first));
  interval.first -= more / 2;
  interval.end += more - more / 2 + (base::Planted("region_one_too_large") ? 1 : 0);
  if (interval.end >= size) {
    interval.first -= interval.end - size;
    interval.end = size;
  }
  if (interval.first < 0) {
    interval.end -= interval.first;
    interval.first = 0;
  }
  interval.end = std::min(interval.end, size);
  return interval;
}

uint32_t DividedBy255(uint32_t value) {
  value += 128;
  return ((value >> 8) + value) >> 8;
}

// One channel of `over` with opacity `alpha` on an opaque `under`, as Pillow computes it in three steps: it
// multiplies by alpha, divides by it, and composes with 7 more bits.
uint8_t Composed(uint32_t over, uint32_t under, uint32_t alpha) {
  if (alpha == 0) return static_cast<uint8_t>(under);
  uint32_t straight = DividedBy255(over * alpha);
  if (alpha != 255) straight = std::min(255 * straight / alpha, 255u);
  constexpr uint32_t kBits = 7;
  const uint32_t over_weight = alpha << kBits, under_weight = (255u << kBits) - over_weight;
  const uint32_t sum = straight * over_weight + under * under_weight + (128u << kBits);
  return static_cast<uint8_t>((((sum >> 8) + sum) >> 8) >> kBits);
}

absl::Status CheckRgb(const Frames& picture, const char* what) {
  RETURN_IF_ERROR(CheckFrame(picture, what));
  return picture.channels == 3 ? absl::OkStatus() : absl::InvalidArgumentError(absl::StrCat(what, " must be RGB"));
}

absl::Status CheckSameSize(const Frames& picture, const char* what, const Frames& original) {
  if (picture.width == original.width && picture.height == original.height) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(what, " has ", picture.width, "x", picture.height,
                                                 " pixels, but the original has ", original.width, "x",
                                                 original.height));
}

}  // namespace

absl::StatusOr<PixelRegion> MaskRegion(const Frames& mask, int width, int height, int padding) {
  ASSIGN_OR_RETURN(const Frames gray, ToGray(mask));
  if (width < 1 || height < 1 || padding < 0) {
    return absl::InvalidArgumentError(absl::StrCat("a region for ", width, "x", height, " pixels with a padding of ",
                                                   padding, " is not valid; sizes are at least 1, a padding 0"));
  }
  Interval columns{gray.width, 0}, rows{gray.height, 0};
  const uint8_t* value = gray.bytes.data();
  for (int y = 0; y < gray.height; ++y) {
    for (int x = 0; x < gray.width; ++x) {
      if (*value++ == 0) continue;
      columns = {std::min<int64_t>(columns.first, x), std::max<int64_t>(columns.end, x + 1)};
      rows = {std::min<int64_t>(rows.first, y), y + 1};
    }
  }
  if (columns.end == 0) return absl::InvalidArgumentError("the mask has no pixel above 0, so nothing would be painted");
  columns = {std::max<int64_t>(columns.first - padding, 0), std::min<int64_t>(columns.end + padding, gray.width)};
  rows = {std::max<int64_t>(rows.first - padding, 0), std::min<int64_t>(rows.end + padding, gray.height)};
  const double region_width = static_cast<double>(columns.end - columns.first);
  const double region_height = static_cast<double>(rows.end - rows.first);
  const double ratio = static_cast<double>(width) / height;
  if (region_width / region_height > ratio) {
    rows = Grown(rows, region_width / ratio, gray.height);
  } else {
    columns = Grown(columns, region_height * ratio, gray.width);
  }
  return PixelRegion{.left = static_cast<int>(columns.first),
                     .top = static_cast<int>(rows.first),
                     .right = static_cast<int>(columns.end),
                     .bottom = static_cast<int>(rows.end)};
}

absl::StatusOr<Frames> OverlayPicture(const Frames& mask, const Frames& original, const Frames& painted,
                                      const std::optional<PixelRegion>& region) {
  RETURN_IF_ERROR(CheckRgb(original, "the original"));
  RETURN_IF_ERROR(CheckRgb(painted, "the painted picture"));
  ASSIGN_OR_RETURN(const Frames gray, ToGray(mask));
  RETURN_IF_ERROR(CheckSameSize(gray, "the mask", original));
  Frames under;
  if (region.has_value()) {
    const int64_t width = int64_t{region->right} - region->left, height = int64_t{region->bottom} - region->top;
    if (region->left < 0 || region->top < 0 || width < 1 || height < 1 || region->right > original.width ||
        region->bottom > original.height) {
      return absl::InvalidArgumentError("the region must have pixels and lie within the original");
    }
    ASSIGN_OR_RETURN(const Frames fitted,
                     FitPicture(painted, static_cast<int>(width), static_cast<int>(height), FitMode::kCrop));
    ASSIGN_OR_RETURN(under, CutRegion(fitted, {.left = -region->left,
                                               .top = -region->top,
                                               .right = original.width - region->left,
                                               .bottom = original.height - region->top}));
  } else {
    RETURN_IF_ERROR(CheckSameSize(painted, "the painted picture", original));
    under = painted;
  }
  for (size_t pixel = 0; pixel < gray.bytes.size(); ++pixel) {
    const uint32_t alpha = 255u - gray.bytes[pixel];
    for (size_t i = 3 * pixel; i < 3 * pixel + 3; ++i) {
      under.bytes[i] = Composed(original.bytes[i], under.bytes[i], alpha);
    }
  }
  return under;
}

}  // namespace tessera::control
