#include "server/image/image_file.h"

#include <algorithm>
#include <new>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/macros/status_macros.h"
#include "server/image/character_sets.h"
#include "server/image/codecs.h"
#include "server/image/exif.h"

namespace tessera::server {
namespace {

constexpr int kMaxWebpSide = 16383;
constexpr int64_t kAlwaysAllowedPixels = int64_t{1} << 24;
constexpr int64_t kMaxPixelsPerFileByte = 10000;

absl::Status CheckSides(int64_t width, int64_t height) {
  if (width < 1 || height < 1) {
    return absl::InvalidArgumentError(absl::StrCat("image size ", width, "x", height, ": both sides must be positive"));
  }
  if (width > kMaxImageSide || height > kMaxImageSide) {
    return absl::ResourceExhaustedError(
        absl::StrCat("image size ", width, "x", height, ": a side may have at most ", kMaxImageSide, " pixels"));
  }
  if (width * height > kMaxImagePixels) {
    return absl::ResourceExhaustedError(
        absl::StrCat("image size ", width, "x", height, ": an image may have at most ", kMaxImagePixels, " pixels"));
  }
  return absl::OkStatus();
}

absl::Status CheckFrames(const control::Frames& image, ImageFormat format) {
  const std::string name(ImageFormatName(format));
  if (image.count != 1) {
    return absl::InvalidArgumentError(absl::StrCat("image of ", image.count, " frames: a ", name, " file holds one"));
  }
  if (image.channels != 3 && image.channels != 4) {
    return absl::InvalidArgumentError(
        absl::StrCat("image of ", image.channels, " channels: valid values are 3 (RGB) and 4 (RGB and alpha)"));
  }
  if (format == ImageFormat::kJpeg && image.channels == 4) {
    return absl::InvalidArgumentError("image with alpha: JPEG has no transparency; use .png or .webp");
  }
  if (image.bytes.size() != image.rows() * image.row_bytes()) {
    return absl::InvalidArgumentError(
        absl::StrCat("image of ", image.width, "x", image.height, " with ", image.bytes.size(), " bytes of pixels"));
  }
  return absl::OkStatus();
}

absl::StatusOr<DecodedImage> DecodeByContent(std::string_view bytes) {
  if (bytes.starts_with("\x89PNG\r\n\x1a\n")) return DecodePng(bytes);
  if (bytes.starts_with("\xFF\xD8\xFF")) return DecodeJpeg(bytes);
  if (bytes.starts_with("RIFF") && bytes.size() >= 12 && bytes.substr(8, 4) == "WEBP") return DecodeWebp(bytes);
  return absl::InvalidArgumentError("not an image: the file is neither PNG nor JPEG nor WebP");
}

}  // namespace

std::string_view ImageFormatName(ImageFormat format) {
  static constexpr std::string_view kNames[] = {"PNG", "JPEG", "WebP"};
  return kNames[static_cast<size_t>(format)];
}

absl::StatusOr<ImageFormat> FormatFromPath(std::string_view path) {
  const std::string_view name = path.substr(path.find_last_of('/') + 1);
  const size_t dot = name.find_last_of('.');
  std::string extension = dot == std::string_view::npos ? "" : std::string(name.substr(dot));
  absl::AsciiStrToLower(&extension);
  if (extension == ".png") return ImageFormat::kPng;
  if (extension == ".jpg" || extension == ".jpeg") return ImageFormat::kJpeg;
  if (extension == ".webp") return ImageFormat::kWebp;
  return absl::InvalidArgumentError(absl::StrCat(
      "output name \"", std::string(path),
      "\": ", extension.empty() ? "it has no extension" : absl::StrCat("unknown extension \"", extension, "\""),
      "; valid values are .png, .jpg, .jpeg and .webp"));
}

absl::Status CheckEncodable(ImageFormat format, int width, int height, std::string_view parameters) {
  RETURN_IF_ERROR(CheckSides(width, height));
  if (format == ImageFormat::kWebp && std::max(width, height) > kMaxWebpSide) {
    return absl::InvalidArgumentError(absl::StrCat("image size ", width, "x", height, ": WebP allows at most ",
                                                   kMaxWebpSide, " pixels a side; use .png or .jpg"));
  }
  if (parameters.size() > kMaxParametersBytes) {
    return absl::InvalidArgumentError(absl::StrCat("parameters of ", parameters.size(),
                                                   " bytes: an image file may carry at most ", kMaxParametersBytes));
  }
  if (!IsUtf8(parameters)) return absl::InvalidArgumentError("parameters: the text is not valid UTF-8");
  if (parameters.find('\0') != std::string_view::npos) {
    return absl::InvalidArgumentError("parameters: the text contains a NUL character");
  }
  if (format == ImageFormat::kJpeg) {
    const size_t exif_bytes = BuildExif(parameters).size();
    if (exif_bytes > kMaxJpegExifBytes) {
      return absl::InvalidArgumentError(absl::StrCat("parameters: they need ", exif_bytes,
                                                     " bytes as EXIF and JPEG allows ", kMaxJpegExifBytes,
                                                     "; shorten the prompt or use .png or .webp"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> EncodeImage(const control::Frames& image, ImageFormat format,
                                        const EncodeOptions& options) {
  RETURN_IF_ERROR(CheckEncodable(format, image.width, image.height, options.parameters));
  RETURN_IF_ERROR(CheckFrames(image, format));
  if (options.quality < 1 || options.quality > 100) {
    return absl::InvalidArgumentError(absl::StrCat("quality ", options.quality, ": valid values are 1 to 100"));
  }
  if (format == ImageFormat::kPng) return EncodePng(image, options.parameters);
  const std::string exif = options.parameters.empty() ? "" : BuildExif(options.parameters);
  if (format == ImageFormat::kJpeg) return EncodeJpeg(image, exif, options.quality);
  return EncodeWebp(image, exif, options.webp_lossless, options.quality);
}

absl::Status CheckDecodedSize(int64_t width, int64_t height, size_t file_bytes) {
  RETURN_IF_ERROR(CheckSides(width, height));
  if (width * height > kAlwaysAllowedPixels &&
      static_cast<size_t>(width * height / kMaxPixelsPerFileByte) > file_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat("image size ", width, "x", height, ": a file of ", file_bytes,
                                                     " bytes cannot hold so many pixels"));
  }
  return absl::OkStatus();
}

absl::StatusOr<DecodedImage> DecodeImage(std::string_view bytes) {
  try {
    absl::StatusOr<DecodedImage> decoded = DecodeByContent(bytes);
    if (decoded.ok() && decoded->parameters.size() > kMaxParametersBytes) {
      return absl::ResourceExhaustedError(absl::StrCat("the image carries ", decoded->parameters.size(),
                                                       " bytes of parameters; at most ", kMaxParametersBytes,
                                                       " are read"));
    }
    return decoded;
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("there is not enough memory to decode the image");
  }
}

}  // namespace tessera::server
