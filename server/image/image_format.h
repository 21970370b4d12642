// The formats of image files, and how a file is to be encoded.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "absl/status/statusor.h"

namespace tessera::server {

enum class ImageFormat : uint8_t { kPng, kJpeg, kWebp };

// Returns "PNG", "JPEG" or "WebP".
[[nodiscard]] std::string_view ImageFormatName(ImageFormat format);

// Returns the format of the extension of `path`, in either case; INVALID_ARGUMENT names the valid extensions.
[[nodiscard]] absl::StatusOr<ImageFormat> FormatFromPath(std::string_view path);

struct OutputOptions {
  ImageFormat format = ImageFormat::kPng;
  // Quality of JPEG and lossy WebP, 1 to 100. Absent: the encoder's default, which is lossless for WebP.
  std::optional<int32_t> quality;

  bool operator==(const OutputOptions&) const = default;
};

}  // namespace tessera::server
