#include "client/cli/output/contact_sheet.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace tessera::client {
namespace {

constexpr int kMostSide = 4096;  // for a square sheet
constexpr uint8_t kBackground = 24;
constexpr std::array<uint8_t, 3> kFailure = {96, 24, 24};

size_t At(const control::Frames& image, int x, int y) {
  return static_cast<size_t>(y) * image.row_bytes() + static_cast<size_t>(x) * static_cast<size_t>(image.channels);
}

// When `from` pixels are reduced to `to`, returns the first source pixel of target pixel `at`.
int Edge(int at, int from, int to) { return static_cast<int>(int64_t{at} * from / to); }

}  // namespace

control::Frames Shrink(const control::Frames& image, int width, int height) {
  control::Frames small = {.width = width, .height = height, .bytes = {}};
  small.bytes.resize(At(small, 0, height));
  for (int y = 0; y < height; ++y) {
    const int top = Edge(y, image.height, height), bottom = Edge(y + 1, image.height, height);
    for (int x = 0; x < width; ++x) {
      const int left = Edge(x, image.width, width), right = Edge(x + 1, image.width, width);
      const uint64_t pixels = static_cast<uint64_t>(bottom - top) * static_cast<uint64_t>(right - left);
      for (size_t channel = 0; channel < 3; ++channel) {
        uint64_t sum = pixels / 2;
        for (int row = top; row < bottom; ++row) {
          for (int column = left; column < right; ++column) sum += image.bytes[At(image, column, row) + channel];
        }
        small.bytes[At(small, x, y) + channel] = static_cast<uint8_t>(sum / pixels);
      }
    }
  }
  return small;
}

ContactSheet::ContactSheet(int cells, int columns, int cell)
    : columns_(std::min(cells, columns)), picture_(cell - kGap) {
  sheet_.width = columns_ * cell;
  sheet_.height = (cells + columns_ - 1) / columns_ * cell;
  sheet_.bytes.assign(At(sheet_, 0, sheet_.height), kBackground);
}

ContactSheet ContactSheet::Square(int cells, int longest_side) {
  const int columns = static_cast<int>(std::ceil(std::sqrt(cells)));
  return {cells, columns, std::max(kGap + 1, std::min(longest_side + kGap, kMostSide / columns))};
}

void ContactSheet::Fill(int cell, const control::Frames& image) {
  const int left = cell % columns_ * (picture_ + kGap) + (picture_ - image.width) / 2;
  const int top = cell / columns_ * (picture_ + kGap) + (picture_ - image.height) / 2;
  for (int y = 0; y < image.height; ++y) {
    for (int x = 0; x < image.width; ++x) {
      std::copy_n(image.bytes.begin() + static_cast<std::ptrdiff_t>(At(image, x, y)), sheet_.channels,
                  sheet_.bytes.begin() + static_cast<std::ptrdiff_t>(At(sheet_, left + x, top + y)));
    }
  }
}

void ContactSheet::Put(int cell, const control::Frames& image) {
  if (image.width <= picture_ && image.height <= picture_) return Fill(cell, image);
  const int longest = std::max(image.width, image.height);
  const auto shrunk = [&](int side) { return std::max(1, static_cast<int>(int64_t{side} * picture_ / longest)); };
  Fill(cell, Shrink(image, shrunk(image.width), shrunk(image.height)));
}

void ContactSheet::PutFailure(int cell) {
  control::Frames square = {.width = picture_, .height = picture_, .bytes = {}};
  for (int i = 0; i < picture_ * picture_; ++i)
    square.bytes.insert(square.bytes.end(), kFailure.begin(), kFailure.end());
  Fill(cell, square);
}

}  // namespace tessera::client
