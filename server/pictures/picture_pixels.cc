#include "server/pictures/picture_pixels.h"

#include <cstdint>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/macros/planted.h"
#include "control/pictures/displayed_pixel.h"
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
    for (int c = 0; c < 3; ++c) to[c] = control::ValueOnWhite(from[c], from[3]);
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
  return WithThreeChannels(std::move(frames), [](const uint8_t* from, uint8_t* to) {
    std::memset(to, base::Planted("alpha_ignored") ? 0 : 255 - from[3], 3);
  });
}

control::Frames Oriented(control::Frames frame, int orientation) {
  if (orientation < 2 || orientation > 8) return frame;
  const bool exchanged = control::ExchangesSides(orientation);
  control::Frames out{.width = exchanged ? frame.height : frame.width,
                      .height = exchanged ? frame.width : frame.height,
                      .channels = frame.channels,
                      .bytes = std::vector<uint8_t>(frame.bytes.size())};
  const auto channels = static_cast<size_t>(frame.channels);
  uint8_t* to = out.bytes.data();
  for (int y = 0; y < out.height; ++y) {
    for (int x = 0; x < out.width; ++x, to += channels) {
      const size_t from = control::StoredIndex(orientation, frame.width, frame.height, x, y);
      std::memcpy(to, frame.bytes.data() + from * channels, channels);
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
