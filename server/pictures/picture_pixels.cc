#include "server/pictures/picture_pixels.h"

#include <cstdint>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "server/image/image_file.h"

namespace tessera::server {
namespace {

size_t PixelCount(const control::Frames& frames) { return frames.rows() * static_cast<size_t>(frames.width); }

// Calls `convert(from, to)` for each pixel of 4 channels, in place: `to` has 3 and never overtakes `from`.
template <typename Convert>
control::Frames WithThreeChannels(control::Frames frames, Convert convert) {
  const size_t pixels = PixelCount(frames);
  uint8_t* const bytes = frames.bytes.data();
  for (size_t i = 0; i < pixels; ++i) {
    uint8_t from[4];
    std::memcpy(from, bytes + 4 * i, sizeof(from));
    convert(from, bytes + 3 * i);
  }
  frames.bytes.resize(3 * pixels);
  frames.channels = 3;
  return frames;
}

}  // namespace

control::Frames OnWhite(control::Frames frames) {
  if (frames.channels != 4) return frames;
  return WithThreeChannels(std::move(frames), [](const uint8_t* from, uint8_t* to) {
    const uint32_t alpha = from[3];
    for (int c = 0; c < 3; ++c) to[c] = static_cast<uint8_t>((from[c] * alpha + 255 * (255 - alpha) + 127) / 255);
  });
}

control::Frames DropAlpha(control::Frames frames) {
  if (frames.channels != 4) return frames;
  return WithThreeChannels(std::move(frames), [](const uint8_t* from, uint8_t* to) { std::memcpy(to, from, 3); });
}

control::Frames MaskOfAlpha(control::Frames frames) {
  if (frames.channels != 4) {
    frames.bytes.assign(frames.bytes.size(), 0);
    return frames;
  }
  return WithThreeChannels(std::move(frames),
                           [](const uint8_t* from, uint8_t* to) { std::memset(to, 255 - from[3], 3); });
}

control::Frames Oriented(control::Frames frame, int orientation) {
  if (orientation < 2 || orientation > 8) return frame;
  // From 5 on, rows and columns are exchanged. Each value then mirrors the columns or the rows that are displayed.
  const bool exchanged = orientation >= 5;
  const bool mirror_columns = orientation == 2 || orientation == 3 || orientation == 6 || orientation == 7;
  const bool mirror_rows = orientation == 3 || orientation == 4 || orientation == 7 || orientation == 8;
  control::Frames out{.width = exchanged ? frame.height : frame.width,
                      .height = exchanged ? frame.width : frame.height,
                      .channels = frame.channels,
                      .bytes = std::vector<uint8_t>(frame.bytes.size())};
  const auto channels = static_cast<size_t>(frame.channels);
  uint8_t* to = out.bytes.data();
  for (int y = 0; y < out.height; ++y) {
    const int row = mirror_rows ? out.height - 1 - y : y;
    for (int x = 0; x < out.width; ++x, to += channels) {
      const int column = mirror_columns ? out.width - 1 - x : x;
      const size_t from_y = static_cast<size_t>(exchanged ? column : row);
      const size_t from_x = static_cast<size_t>(exchanged ? row : column);
      std::memcpy(to, frame.bytes.data() + from_y * frame.row_bytes() + from_x * channels, channels);
    }
  }
  return out;
}

absl::StatusOr<std::string> EncodeStoredPicture(const control::Frames& frame) {
  if (frame.channels != 3) {
    return absl::InvalidArgumentError(absl::StrCat("a picture of ", frame.channels, " channels: stored ones have 3"));
  }
  return EncodeImage(frame, ImageFormat::kPng, {});
}

}  // namespace tessera::server
