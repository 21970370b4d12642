#include "control/pictures/blur.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/macros/status_macros.h"
#include "control/pictures/fit_picture.h"

namespace tessera::control {
namespace {

constexpr int kPasses = 3;

// Returns the radius, with its fraction, of the box filter that makes a Gaussian of this standard deviation when it is
// applied kPasses times (Gwosdek et al., "Theoretical Foundations of Gaussian Convolution by Extended Box Filtering",
// 2011). In floats, as Pillow computes it.
float BoxRadius(float radius) {
  const float variance = radius * radius / kPasses;
  const float length = static_cast<float>(std::sqrt(12.0 * variance + 1.0));
  const float whole = static_cast<float>(std::floor((length - 1.0) / 2.0));
  const float part =
      (2 * whole + 1) * (whole * (whole + 1) - 3 * variance) / (6 * (variance - (whole + 1) * (whole + 1)));
  return whole + part;
}

// A box filter of 2 `radius` + 1 samples and a part of the next one at both ends, with weights of 24 bits.
struct Box {
  explicit Box(float box_radius)
      : radius(static_cast<int64_t>(box_radius)),
        weight(static_cast<uint32_t>(static_cast<float>(1 << 24) / (box_radius * 2 + 1))),
        end_weight(((1u << 24) - static_cast<uint32_t>(2 * radius + 1) * weight) / 2) {}

  int64_t radius;
  uint32_t weight, end_weight;
};

// Filters `size` samples that are `stride` apart. Samples beyond the ends are those at the ends.
void FilterLine(const uint8_t* in, uint8_t* out, int64_t size, size_t stride, const Box& box) {
  const auto at = [&](int64_t i) {
    return uint32_t{in[stride * static_cast<size_t>(std::clamp<int64_t>(i, 0, size - 1))]};
  };
  const int64_t radius = box.radius;
  // The sum of samples -radius - 1 to radius - 1.
  uint32_t sum = at(0) * static_cast<uint32_t>(radius + 1);
  for (int64_t i = 0; i < std::min(radius, size); ++i) sum += at(i);
  sum += at(size - 1) * static_cast<uint32_t>(std::max<int64_t>(radius - size, 0));
  for (int64_t i = 0; i < size; ++i) {
    sum += at(i + radius) - at(i - radius - 1);
    const uint32_t total = sum * box.weight + (at(i - radius - 1) + at(i + radius + 1)) * box.end_weight;
    out[stride * static_cast<size_t>(i)] = static_cast<uint8_t>((total + (1u << 23)) >> 24);
  }
}

}  // namespace

absl::StatusOr<Frames> GaussianBlur(const Frames& picture, float radius) {
  RETURN_IF_ERROR(CheckFrame(picture, "the picture"));
  if (!(radius >= 0 && radius <= kMaxBlurRadius)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a blur radius is ", radius, "; valid values are 0 to ", kMaxBlurRadius));
  }
  if (radius == 0) return picture;
  const Box box(BoxRadius(radius));
  const size_t channels = static_cast<size_t>(picture.channels), row_bytes = picture.row_bytes();
  Frames result = picture, before = picture;
  for (int pass = 0; pass < kPasses; ++pass) {
    before.bytes.swap(result.bytes);
    for (size_t row = 0; row < picture.rows(); ++row) {
      for (size_t c = 0; c < channels; ++c) {
        const size_t first = row * row_bytes + c;
        FilterLine(&before.bytes[first], &result.bytes[first], picture.width, channels, box);
      }
    }
  }
  for (int pass = 0; pass < kPasses; ++pass) {
    before.bytes.swap(result.bytes);
    for (size_t column = 0; column < row_bytes; ++column) {
      FilterLine(&before.bytes[column], &result.bytes[column], picture.height, row_bytes, box);
    }
  }
  return result;
}

}  // namespace tessera::control
