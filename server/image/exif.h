// The text of an EXIF block: a TIFF structure whose UserComment holds the generation parameters (EXIF 2.32, 4.6.5).
// Big-endian ("MM") with UTF-16 of the same order, which is the one combination that every reader agrees on.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace tessera::server {

// What one JPEG segment leaves for the TIFF block after its length field and "Exif\0\0".
inline constexpr size_t kMaxJpegExifBytes = 65527;

// A TIFF block with `comment`, which must be UTF-8, as its UserComment.
[[nodiscard]] std::string BuildExif(std::string_view comment);

// The UserComment as UTF-8; empty where the block has none or one in an unknown character code. `exif` may begin with
// "Exif\0\0". kDataLoss where the structure points outside the block.
[[nodiscard]] absl::StatusOr<std::string> ReadExifUserComment(std::string_view exif);

}  // namespace tessera::server
