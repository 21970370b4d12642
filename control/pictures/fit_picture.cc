#include "control/pictures/fit_picture.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/macros/planted.h"
#include "base/macros/status_macros.h"
#include "control/pictures/filter_taps.h"
#include "control/pictures/picture.h"

namespace tessera::control {
namespace {

constexpr int kWeightBits = 22;
constexpr int32_t kHalf = 1 << (kWeightBits - 1);

// The taps of one output sample with fixed-point weights.
struct FixedTaps {
  int first = 0;
  std::vector<int32_t> weights;
};

std::vector<FixedTaps> FixedTapsOf(int size, double from, double to, int new_size, const ResamplingFilter& filter) {
  const double one = base::Planted("weights_of_21_bits") ? 1 << (kWeightBits - 1) : 1 << kWeightBits;
  std::vector<FixedTaps> all;
  all.reserve(static_cast<size_t>(new_size));
  for (const FilterTaps& taps : TapsOf(size, from, to, new_size, filter)) {
    FixedTaps& fixed = all.emplace_back();
    fixed.first = taps.first;
    fixed.weights.reserve(taps.weights.size());
    for (const double weight : taps.weights) {
      fixed.weights.push_back(static_cast<int32_t>(weight * one + (weight < 0 ? -0.5 : 0.5)));
      if (base::Planted("weights_of_21_bits")) fixed.weights.back() *= 2;
    }
  }
  return all;
}

// The sum of products with weights of 22 bits, rounded and clipped to 8 bits.
uint8_t Clipped(int32_t sum) { return static_cast<uint8_t>(std::clamp(sum >> kWeightBits, 0, 255)); }

size_t BytesOf(int width, int height, int channels) {
  return static_cast<size_t>(width) * static_cast<size_t>(height) * static_cast<size_t>(channels);
}

Frames BlankFrame(int width, int height, int channels) {
  Frames frame{.width = width, .height = height, .channels = channels, .bytes = {}};
  frame.bytes.resize(BytesOf(width, height, channels));
  return frame;
}

Frames FilterRows(const Frames& picture, const std::vector<FixedTaps>& columns) {
  Frames result = BlankFrame(static_cast<int>(columns.size()), picture.height, picture.channels);
  const int channels = picture.channels;
  uint8_t* out = result.bytes.data();
  for (int y = 0; y < picture.height; ++y) {
    const uint8_t* row = picture.bytes.data() + picture.row_bytes() * static_cast<size_t>(y);
    for (const FixedTaps& taps : columns) {
      int32_t sums[3] = {kHalf, kHalf, kHalf};
      const uint8_t* in = row + taps.first * channels;
      for (const int32_t weight : taps.weights) {
        for (int c = 0; c < channels; ++c) sums[c] += weight * *in++;
      }
      for (int c = 0; c < channels; ++c) *out++ = Clipped(sums[c]);
    }
  }
  return result;
}

Frames FilterColumns(const Frames& picture, const std::vector<FixedTaps>& rows) {
  Frames result = BlankFrame(picture.width, static_cast<int>(rows.size()), picture.channels);
  std::vector<int32_t> sums(picture.row_bytes());
  uint8_t* out = result.bytes.data();
  for (const FixedTaps& taps : rows) {
    std::fill(sums.begin(), sums.end(), kHalf);
    const uint8_t* in = picture.bytes.data() + picture.row_bytes() * static_cast<size_t>(taps.first);
    for (const int32_t weight : taps.weights) {
      for (int32_t& sum : sums) sum += weight * *in++;
    }
    out = std::transform(sums.begin(), sums.end(), out, Clipped);
  }
  return result;
}

absl::Status CheckSize(int64_t width, int64_t height) {
  if (width >= 1 && height >= 1 && width <= kMaxPictureSide && height <= kMaxPictureSide &&
      width * height <= kMaxPicturePixels) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("a picture cannot have ", width, "x", height,
                                                 " pixels; valid are sides of 1 to ", kMaxPictureSide, " and at most ",
                                                 kMaxPicturePixels, " pixels"));
}

// Pastes a picture at (left, top), which may be outside, and cuts what does not fit.
void Paste(Frames& canvas, const Frames& picture, int left, int top) {
  const int64_t first_x = std::max(left, 0), end_x = std::min<int64_t>(int64_t{left} + picture.width, canvas.width);
  const int64_t first_y = std::max(top, 0), end_y = std::min<int64_t>(int64_t{top} + picture.height, canvas.height);
  if (first_x >= end_x) return;
  const size_t channels = static_cast<size_t>(canvas.channels);
  for (int64_t y = first_y; y < end_y; ++y) {
    std::memcpy(canvas.bytes.data() + canvas.row_bytes() * static_cast<size_t>(y) + channels * first_x,
                picture.bytes.data() + picture.row_bytes() * static_cast<size_t>(y - top) + channels * (first_x - left),
                channels * static_cast<size_t>(end_x - first_x));
  }
}

// Returns a strip of `size` rows that continues the picture above its first or below its last row: the bicubic
// filter at the edge itself, a box without height.
Frames RowsAtEdge(const Frames& picture, int edge, int size) {
  return FilterColumns(picture, FixedTapsOf(picture.height, edge, edge, size, kBicubicFilter));
}

Frames ColumnsAtEdge(const Frames& picture, int edge, int size) {
  return FilterRows(picture, FixedTapsOf(picture.width, edge, edge, size, kBicubicFilter));
}

}  // namespace

absl::Status CheckFrame(const Frames& picture, const char* what) {
  if (picture.count != 1 || (picture.channels != 1 && picture.channels != 3)) {
    return absl::InvalidArgumentError(absl::StrCat(what, " must be one frame of 1 or 3 channels"));
  }
  RETURN_IF_ERROR(CheckSize(picture.width, picture.height));
  if (picture.bytes.size() != BytesOf(picture.width, picture.height, picture.channels)) {
    return absl::InvalidArgumentError(absl::StrCat(what, " has ", picture.bytes.size(), " bytes, but ", picture.width,
                                                   "x", picture.height, " pixels"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Frames> Resize(const Frames& picture, int width, int height) {
  RETURN_IF_ERROR(CheckFrame(picture, "the picture"));
  RETURN_IF_ERROR(CheckSize(width, height));
  Frames result = picture;
  const int rows_lost = picture.height - height, columns_lost = picture.width - width;
  const auto across = [&] {
    if (columns_lost != 0) {
      result = FilterRows(result, FixedTapsOf(picture.width, 0, picture.width, width, kLanczosFilter));
    }
  };
  // Clipping makes the result depend on the order of the passes.
  const bool down_first = (rows_lost > 0 && rows_lost > 2 * columns_lost) != base::Planted("resize_passes_exchanged");
  if (!down_first) across();
  if (rows_lost != 0) {
    result = FilterColumns(result, FixedTapsOf(picture.height, 0, picture.height, height, kLanczosFilter));
  }
  if (down_first) across();
  return result;
}

absl::StatusOr<Frames> FitPicture(const Frames& picture, int width, int height, FitMode mode) {
  if (mode == FitMode::kStretch) return Resize(picture, width, height);
  RETURN_IF_ERROR(CheckFrame(picture, "the picture"));
  RETURN_IF_ERROR(CheckSize(width, height));
  const double wanted = static_cast<double>(width) / height;
  const double ratio = static_cast<double>(picture.width) / picture.height;
  int64_t fitted_width = width, fitted_height = height;
  // The side that follows from the other one, in whole numbers.
  const bool height_follows = mode == FitMode::kCrop ? wanted > ratio : wanted < ratio;
  const bool width_follows = mode == FitMode::kCrop ? wanted <= ratio : wanted >= ratio;
  if (width_follows) fitted_width = int64_t{picture.width} * height / picture.height;
  if (height_follows) fitted_height = int64_t{picture.height} * width / picture.width;
  if (!CheckSize(fitted_width, fitted_height).ok()) {
    return absl::InvalidArgumentError(absl::StrCat("a picture of ", picture.width, "x", picture.height,
                                                   " pixels is too narrow to be fitted to ", width, "x", height));
  }
  ASSIGN_OR_RETURN(Frames fitted, Resize(picture, static_cast<int>(fitted_width), static_cast<int>(fitted_height)));
  Frames canvas = BlankFrame(width, height, picture.channels);
  const int left = width / 2 - fitted.width / 2, top = height / 2 - fitted.height / 2;
  Paste(canvas, fitted, left, top);
  if (mode == FitMode::kFill && wanted < ratio && top > 0) {
    Paste(canvas, RowsAtEdge(fitted, 0, top), 0, 0);
    Paste(canvas, RowsAtEdge(fitted, fitted.height, top), 0, top + fitted.height);
  } else if (mode == FitMode::kFill && wanted > ratio && left > 0) {
    Paste(canvas, ColumnsAtEdge(fitted, 0, left), 0, 0);
    Paste(canvas, ColumnsAtEdge(fitted, fitted.width, left), left + fitted.width, 0);
  }
  return canvas;
}

absl::StatusOr<Frames> CutRegion(const Frames& picture, const PixelRegion& region) {
  RETURN_IF_ERROR(CheckFrame(picture, "the picture"));
  const int64_t width = int64_t{region.right} - region.left, height = int64_t{region.bottom} - region.top;
  RETURN_IF_ERROR(CheckSize(width, height));
  if (region.left == INT32_MIN || region.top == INT32_MIN) {
    return absl::InvalidArgumentError("the region is too far outside the picture");
  }
  Frames result = BlankFrame(static_cast<int>(width), static_cast<int>(height), picture.channels);
  Paste(result, picture, -region.left, -region.top);
  return result;
}

}  // namespace tessera::control
