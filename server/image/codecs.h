// One encoder and one decoder per file format. image_file.h calls them; it checks frames and parameters before encoding
// and recognises the format before decoding.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/image/image_file.h"
#include "server/image/source_image.h"

namespace tessera::server {

// Refuses a decoded header before memory is allocated for it. A short file that claims a large picture is refused too:
// above 16 MPixel, each byte of the file may stand for at most 10,000 pixels, which is more than deflate can reach.
[[nodiscard]] absl::Status CheckDecodedSize(int64_t width, int64_t height, size_t file_bytes);

// The same for the limits of a caller's picture.
[[nodiscard]] absl::Status CheckSourceSize(int64_t width, int64_t height, size_t file_bytes,
                                           const SourceLimits& limits);

[[nodiscard]] absl::StatusOr<std::string> EncodePng(const control::Frames& image, const std::string& parameters);
[[nodiscard]] absl::StatusOr<DecodedImage> DecodePng(std::string_view bytes);

[[nodiscard]] absl::StatusOr<SourceImage> DecodePngSource(std::string_view bytes, const SourceLimits& limits);

// `exif` is a TIFF block without the "Exif" marker; empty: none is written.
[[nodiscard]] absl::StatusOr<std::string> EncodeJpeg(const control::Frames& image, const std::string& exif,
                                                     int quality);
[[nodiscard]] absl::StatusOr<DecodedImage> DecodeJpeg(std::string_view bytes);
[[nodiscard]] absl::StatusOr<SourceImage> DecodeJpegSource(std::string_view bytes, const SourceLimits& limits);

[[nodiscard]] absl::StatusOr<std::string> EncodeWebp(const control::Frames& image, const std::string& exif,
                                                     bool lossless, int quality);
[[nodiscard]] absl::StatusOr<DecodedImage> DecodeWebp(std::string_view bytes);
[[nodiscard]] absl::StatusOr<SourceImage> DecodeWebpSource(std::string_view bytes, const SourceLimits& limits);

}  // namespace tessera::server
