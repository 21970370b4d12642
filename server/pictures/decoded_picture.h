// DecodedPicture holds the pixels of a picture that a caller has sent, and facts about its file.
#pragma once

#include <cstddef>
#include <cstdint>

#include "control/pictures/picture_frames.h"
#include "server/image/image_format.h"

namespace tessera::server {

struct PictureLimits {
  size_t file_bytes = size_t{50} << 20;
  int side = 16384;                    // pixels of each side
  int64_t pixels = int64_t{64} << 20;  // width times height
};

struct PictureFacts {
  ImageFormat format = ImageFormat::kPng;
  bool animated = false;     // the file has more than one frame; only the first is decoded
  bool had_alpha = false;    // the frames have an alpha channel
  bool had_profile = false;  // the file had a colour profile; the pixels are sRGB in any case

  bool operator==(const PictureFacts&) const = default;
};

struct DecodedPicture {
  // One frame of 8-bit sRGB with 3 channels, or 4 with straight (not premultiplied) alpha. The EXIF orientation is
  // applied.
  control::Frames frames;
  PictureFacts facts;
};

}  // namespace tessera::server
