// Builds and reads the text of an EXIF block: a TIFF structure whose UserComment holds the generation parameters (EXIF
// 2.32, 4.6.5). It is written big-endian ("MM") with UTF-16 of the same order, the one combination that all readers
// understand.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace tessera::server {

inline constexpr std::string_view kExifMarker("Exif\0\0", 6);

// Space for the TIFF block in one JPEG segment after its length field and "Exif\0\0".
inline constexpr size_t kMaxJpegExifBytes = 65527;

// Returns a TIFF block with `comment`, which must be UTF-8, as its UserComment.
[[nodiscard]] std::string BuildExif(std::string_view comment);

// Returns the UserComment as UTF-8; empty if the block has none or one in an unknown character code. `exif` may begin
// with "Exif\0\0". DATA_LOSS if the structure points outside the block.
[[nodiscard]] absl::StatusOr<std::string> ReadExifUserComment(std::string_view exif);

// Returns the orientation, 1 to 8; 1 (as stored) if the block has none, an undefined one, or is damaged: metadata alone
// makes no picture unusable. `exif` may begin with "Exif\0\0".
[[nodiscard]] int ReadExifOrientation(std::string_view exif);

}  // namespace tessera::server
