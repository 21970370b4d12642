// Image files: converts pixels to and from the bytes of a PNG, JPEG or WebP file. The file contains one text, the
// generation parameters, where other image programs look for it: PNG text chunk "parameters", EXIF UserComment in JPEG
// and WebP. Nothing here uses the disk. All functions are pure and may be called from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "control/pictures/picture_frames.h"
#include "server/image/image_format.h"

namespace tessera::server {

inline constexpr int kMaxImageSide = 32768;
inline constexpr int64_t kMaxImagePixels = int64_t{1} << 29;
inline constexpr size_t kMaxParametersBytes = size_t{4} << 20;

struct EncodeOptions {
  std::string parameters;  // UTF-8 without NUL; empty: no metadata is written
  int quality = 95;        // 1 to 100; JPEG and lossy WebP
  bool webp_lossless = true;
};

struct DecodedImage {
  control::Frames image;
  ImageFormat format = ImageFormat::kPng;
  std::string parameters;  // UTF-8; empty if the file has none
};

// Returns whether EncodeImage would accept an image of this size with these parameters, so that a caller can refuse a
// request before the image is computed. JPEG limits an EXIF block to 64 kB, which is about 32,000 characters of
// parameters: longer ones are refused, never cut.
[[nodiscard]] absl::Status CheckEncodable(ImageFormat format, int width, int height, std::string_view parameters);

// Returns the bytes of the file. Equal arguments give equal bytes: they contain no time stamp and no program name. JPEG
// is 4:4:4. PNG and WebP keep alpha. INVALID_ARGUMENT for what the format cannot hold: several frames, alpha in JPEG.
[[nodiscard]] absl::StatusOr<std::string> EncodeImage(const control::Frames& image, ImageFormat format,
                                                      const EncodeOptions& options);

// Reads a file from an untrusted source. Transparency is dropped, grey and palette images become RGB, 16 bits become 8.
// INVALID_ARGUMENT: not an image of these formats, or one with an unsupported feature. DATA_LOSS: damaged or cut short.
// RESOURCE_EXHAUSTED: more pixels or text than the limits above, or than a file this short can contain.
[[nodiscard]] absl::StatusOr<DecodedImage> DecodeImage(std::string_view bytes);

}  // namespace tessera::server
