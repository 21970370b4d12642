// Decodes an image file as its author stored it: with alpha, colour profile and orientation, which DecodeImage of
// image_file.h drops. What they mean for the pixels is left to the caller (server/pictures). Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "control/pictures/picture_frames.h"
#include "server/image/image_format.h"

namespace tessera::server {

struct SourceLimits {
  int side = 0;        // pixels of each side
  int64_t pixels = 0;  // width times height
};

enum class SourceColor : uint8_t { kGrey, kRgb, kCmyk };

struct SourceImage {
  // One frame of 8 bits a channel. Grey is stored as RGB with equal values. 4 channels are RGB and straight alpha, or
  // for kCmyk the amounts of ink, 0 for none.
  control::Frames image;
  ImageFormat format = ImageFormat::kPng;
  SourceColor color = SourceColor::kRgb;
  int orientation = 1;    // EXIF's value, 1 to 8
  bool animated = false;  // the file has more frames than this first one
  std::string profile;    // ICC profile; empty if there is none
};

// Returns the first frame of a PNG, JPEG or WebP file from an untrusted source, recognised by its content. Errors as
// DecodeImage's; INVALID_ARGUMENT names other formats that it recognises.
[[nodiscard]] absl::StatusOr<SourceImage> DecodeSourceImage(std::string_view bytes, const SourceLimits& limits);

}  // namespace tessera::server
