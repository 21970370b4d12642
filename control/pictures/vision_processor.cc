#include "control/pictures/vision_processor.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/macros/status_macros.h"
#include "control/pictures/filter_taps.h"
#include "control/pictures/fit_picture.h"
#include "control/pictures/picture_sides.h"

namespace tessera::control {
namespace {

constexpr int kAreaMultiple = 32;
constexpr int kMostProcessorRatio = 200;
constexpr int kMostWeightBits = 22;

// Rounds half to even, which is the default mode of nearbyint.
double NearestMultiple(double side, int multiple) { return std::nearbyint(side / multiple) * multiple; }

// The taps of one output sample with fixed-point weights of 16 bits.
struct BicubicTaps {
  int first = 0;
  std::vector<int32_t> weights;
};

struct BicubicAxis {
  int bits = 0;  // of the weights' fraction
  std::vector<BicubicTaps> taps;
};

// Returns the taps of an axis. The fraction has as many bits as leave the largest weight below 2^15.
BicubicAxis BicubicAxisOf(int size, int new_size) {
  const std::vector<FilterTaps> exact = TapsOf(size, 0, size, new_size, kBicubicFilter);
  double largest = 0;
  for (const FilterTaps& taps : exact) {
    for (const double weight : taps.weights) largest = std::max(largest, weight);
  }
  BicubicAxis axis;
  while (axis.bits < kMostWeightBits && static_cast<int>(0.5 + largest * (1 << (axis.bits + 1))) < (1 << 15)) {
    ++axis.bits;
  }
  for (const FilterTaps& taps : exact) {
    BicubicTaps& fixed = axis.taps.emplace_back(BicubicTaps{.first = taps.first, .weights = {}});
    for (const double weight : taps.weights) {
      fixed.weights.push_back(static_cast<int32_t>(weight * (1 << axis.bits) + (weight < 0 ? -0.5 : 0.5)));
    }
  }
  return axis;
}

// Resizes lines of `stride` values each, of which there are `picture`'s size along the axis, in `blocks` blocks.
std::vector<uint8_t> FilterLines(const std::vector<uint8_t>& in, size_t blocks, size_t lines, size_t stride,
                                 const BicubicAxis& axis) {
  std::vector<uint8_t> out(blocks * axis.taps.size() * stride);
  std::vector<int32_t> sums(stride);
  uint8_t* next = out.data();
  for (size_t block = 0; block < blocks; ++block) {
    for (const BicubicTaps& taps : axis.taps) {
      std::fill(sums.begin(), sums.end(), 1 << (axis.bits - 1));
      const uint8_t* values = in.data() + (block * lines + static_cast<size_t>(taps.first)) * stride;
      for (const int32_t weight : taps.weights) {
        for (int32_t& sum : sums) sum += weight * *values++;
      }
      for (const int32_t sum : sums) *next++ = static_cast<uint8_t>(std::clamp(sum >> axis.bits, 0, 255));
    }
  }
  return out;
}

}  // namespace

absl::StatusOr<PictureSize> SizeOfArea(const PictureSize& picture, int64_t area) {
  RETURN_IF_ERROR(CheckPictureSides(picture, 1));
  if (area < 1 || area > kMaxPicturePixels) {
    return absl::InvalidArgumentError(
        absl::StrCat("an area of ", area, " pixels is not valid; valid are 1 to ", kMaxPicturePixels));
  }
  const double ratio = static_cast<double>(picture.width) / picture.height;
  const double exact = std::sqrt(static_cast<double>(area) * ratio);
  const double width = NearestMultiple(exact, kAreaMultiple), height = NearestMultiple(exact / ratio, kAreaMultiple);
  if (!IsPictureSide(width, kAreaMultiple) || !IsPictureSide(height, kAreaMultiple)) {
    return WrongPictureSize(
        picture, absl::StrCat("with these proportions a side would have less than ", kAreaMultiple, " or more than ",
                              kMaxPictureSide, " pixels in an area of ", area, " pixels"));
  }
  return PictureSize{.width = static_cast<int>(width), .height = static_cast<int>(height)};
}

absl::StatusOr<PictureSize> ProcessorSize(const PictureSize& picture, const ProcessorLimits& limits) {
  RETURN_IF_ERROR(CheckPictureSides(picture, 1));
  const double w = picture.width, h = picture.height;
  if (std::max(w, h) / std::min(w, h) > kMostProcessorRatio) {
    return WrongPictureSize(picture, absl::StrCat("one side can be at most ", kMostProcessorRatio, " times the other"));
  }
  double width = NearestMultiple(w, limits.unit), height = NearestMultiple(h, limits.unit);
  const double pixels = w * h;
  if (width * height > static_cast<double>(limits.max_pixels)) {
    const double beta = std::sqrt(pixels / static_cast<double>(limits.max_pixels));
    const auto cut = [&](double side) {
      return std::max<double>(limits.unit, std::floor(side / beta / limits.unit) * limits.unit);
    };
    width = cut(w);
    height = cut(h);
  } else if (width * height < static_cast<double>(limits.min_pixels)) {
    const double beta = std::sqrt(static_cast<double>(limits.min_pixels) / pixels);
    width = std::ceil(w * beta / limits.unit) * limits.unit;
    height = std::ceil(h * beta / limits.unit) * limits.unit;
  }
  return PictureSize{.width = static_cast<int>(width), .height = static_cast<int>(height)};
}

absl::StatusOr<Frames> ResizeBicubic(const Frames& picture, int width, int height) {
  RETURN_IF_ERROR(CheckFrame(picture, "the picture"));
  if (!IsPictureSide(width, 1) || !IsPictureSide(height, 1) || int64_t{width} * height > kMaxPicturePixels) {
    return absl::InvalidArgumentError(absl::StrCat("a picture cannot have ", width, "x", height,
                                                   " pixels; valid are sides of 1 to ", kMaxPictureSide));
  }
  Frames result = picture;
  if (width != picture.width) {
    result.bytes = FilterLines(result.bytes, static_cast<size_t>(picture.height), static_cast<size_t>(picture.width),
                               static_cast<size_t>(picture.channels), BicubicAxisOf(picture.width, width));
    result.width = width;
  }
  if (height != picture.height) {
    result.bytes = FilterLines(result.bytes, 1, static_cast<size_t>(picture.height), result.row_bytes(),
                               BicubicAxisOf(picture.height, height));
    result.height = height;
  }
  return result;
}

}  // namespace tessera::control
