#include "server/image/source_image.h"

#include <algorithm>
#include <new>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/macros/status_macros.h"
#include "server/image/codecs.h"

namespace tessera::server {
namespace {

// The brand of an ISO media file, such as "avif"; empty if it is none.
std::string_view MediaBrand(std::string_view bytes) {
  return bytes.size() >= 12 && bytes.substr(4, 4) == "ftyp" ? bytes.substr(8, 4) : std::string_view();
}

// Returns the name of a format that is recognised and not supported, or an empty text.
std::string_view UnsupportedFormat(std::string_view bytes) {
  const std::string_view brand = MediaBrand(bytes);
  if (brand == "avif" || brand == "avis") return "AVIF";
  for (const std::string_view heic : {"heic", "heix", "hevc", "hevx", "heim", "heis", "mif1", "msf1"}) {
    if (brand == heic) return "HEIC";
  }
  struct Signature {
    std::string_view start;
    std::string_view name;
  };
  static constexpr Signature kSignatures[] = {
      {"GIF87a", "GIF"},
      {"GIF89a", "GIF"},
      {std::string_view("II*\0", 4), "TIFF"},
      {std::string_view("MM\0*", 4), "TIFF"},
      {"BM", "BMP"},
      {"%PDF", "PDF"},
      {"8BPS", "Photoshop"},
      {"\xFF\x0A", "JPEG XL"},
      {std::string_view("\0\0\0\x0CJXL ", 8), "JPEG XL"},
      {std::string_view("\0\0\0\x0CjP  ", 8), "JPEG 2000"},
  };
  for (const Signature& signature : kSignatures) {
    if (bytes.starts_with(signature.start)) return signature.name;
  }
  constexpr size_t kSearchedForMarkup = 1024;
  if (bytes.substr(0, kSearchedForMarkup).find("<svg") != std::string_view::npos) return "SVG";
  return {};
}

absl::StatusOr<SourceImage> DecodeByItsContent(std::string_view bytes, const SourceLimits& limits) {
  if (bytes.starts_with("\x89PNG\r\n\x1a\n")) return DecodePngSource(bytes, limits);
  if (bytes.starts_with("\xFF\xD8\xFF")) return DecodeJpegSource(bytes, limits);
  if (bytes.starts_with("RIFF") && bytes.size() >= 12 && bytes.substr(8, 4) == "WEBP") {
    return DecodeWebpSource(bytes, limits);
  }
  if (bytes.empty()) return absl::InvalidArgumentError("the picture is empty");
  if (const std::string_view name = UnsupportedFormat(bytes); !name.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the picture is ", std::string(name), "; PNG, JPEG and WebP are supported"));
  }
  return absl::InvalidArgumentError("not a picture: it is neither PNG nor JPEG nor WebP");
}

}  // namespace

absl::Status CheckSourceSize(int64_t width, int64_t height, size_t file_bytes, const SourceLimits& limits) {
  if (std::max(width, height) > limits.side) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the picture has ", width, "x", height, " pixels: a side may have at most ", limits.side));
  }
  if (width > 0 && height > 0 && width * height > limits.pixels) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the picture has ", width, "x", height, " pixels: at most ", limits.pixels, " are decoded"));
  }
  return CheckDecodedSize(width, height, file_bytes);
}

absl::StatusOr<SourceImage> DecodeSourceImage(std::string_view bytes, const SourceLimits& limits) {
  try {
    return DecodeByItsContent(bytes, limits);
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("there is not enough memory to decode the picture");
  }
}

}  // namespace tessera::server
