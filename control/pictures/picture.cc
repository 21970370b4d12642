#include "control/pictures/picture.h"

#include <zlib.h>

#include <cstdlib>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/files/file.h"
#include "base/macros/status_macros.h"
#include "control/pictures/displayed_pixel.h"
#include "control/pictures/picture_frames.h"

#define STB_IMAGE_IMPLEMENTATION
#define STB_IMAGE_STATIC
#define STBI_ONLY_PNG
#define STBI_ONLY_JPEG
#define STBI_NO_STDIO
#define STBI_NO_LINEAR
#define STBI_NO_HDR
#include <stb/stb_image.h>

namespace tessera::control {
namespace {

constexpr std::string_view kPngSignature = "\x89PNG\r\n\x1a\n";
constexpr std::string_view kExif("Exif\0\0", 6);
constexpr uint16_t kOrientationTag = 0x0112;  // TIFF 6.0
constexpr uint16_t kShort = 3;

uint32_t ByteAt(std::string_view bytes, size_t at) { return static_cast<unsigned char>(bytes[at]); }

uint32_t BigEndian32(std::string_view bytes, size_t at) {
  return ByteAt(bytes, at) << 24 | ByteAt(bytes, at + 1) << 16 | ByteAt(bytes, at + 2) << 8 | ByteAt(bytes, at + 3);
}

absl::Status CutShort() { return absl::DataLossError("the file is cut short"); }

// Reads numbers of a TIFF block in its own byte order; nullopt beyond its end.
class TiffBlock {
 public:
  explicit TiffBlock(std::string_view bytes) : bytes_(bytes), little_(bytes.substr(0, 2) == "II") {}

  std::optional<uint32_t> Number(size_t at, size_t size) const {
    if (at > bytes_.size() || bytes_.size() - at < size) return std::nullopt;
    uint32_t value = 0;
    for (size_t i = 0; i < size; ++i) value = value << 8 | ByteAt(bytes_, at + (little_ ? size - 1 - i : i));
    return value;
  }

 private:
  std::string_view bytes_;
  bool little_;
};

// The orientation of a picture as EXIF numbers it, 1 to 8; 1 (as stored) if the block has none.
int Orientation(std::string_view exif) {
  const TiffBlock tiff(exif);
  const std::optional<uint32_t> directory = tiff.Number(4, 4);
  const std::optional<uint32_t> entries = directory ? tiff.Number(*directory, 2) : std::nullopt;
  for (uint32_t i = 0; i < entries.value_or(0); ++i) {
    const size_t entry = size_t{*directory} + 2 + size_t{12} * i;
    const std::optional<uint32_t> tag = tiff.Number(entry, 2);
    if (!tag.has_value()) break;
    if (*tag != kOrientationTag || tiff.Number(entry + 2, 2) != kShort) continue;
    const uint32_t value = tiff.Number(entry + 8, 2).value_or(1);
    return value >= 1 && value <= 8 ? static_cast<int>(value) : 1;
  }
  return 1;
}

// Checks the chunks: length, type, data, check sum over type and data (PNG specification, section 5). Returns the
// orientation from the eXIf chunk (section 11.3.4.5).
absl::StatusOr<int> CheckPng(std::string_view bytes) {
  int orientation = 1;
  size_t at = kPngSignature.size();
  while (bytes.size() - at >= 12) {
    const uint64_t length = BigEndian32(bytes, at);
    if (length > bytes.size() - at - 12) return CutShort();
    const std::string_view checked = bytes.substr(at + 4, length + 4);
    const uLong sum = crc32_z(0, reinterpret_cast<const Bytef*>(checked.data()), checked.size());
    if (sum != BigEndian32(bytes, at + 8 + length)) {
      return absl::DataLossError(absl::StrCat("the file is damaged at byte ", at, ": a check sum is wrong"));
    }
    const std::string_view type = checked.substr(0, 4);
    if (type == "IEND") return orientation;
    if (type == "eXIf") orientation = Orientation(checked.substr(4));
    at += length + 12;
  }
  return CutShort();
}

// Walks the markers up to the end of the image, which a truncated file lacks (ITU T.81, annex B), and returns the
// orientation.
absl::StatusOr<int> CheckJpeg(std::string_view bytes) {
  int orientation = 1;
  size_t at = 2;
  while (true) {
    // Skips fill bytes between segments; within a scan, skips its data, in which a zero follows each 0xFF, and restart
    // markers.
    while (at + 1 < bytes.size() &&
           (ByteAt(bytes, at) != 0xFF || ByteAt(bytes, at + 1) == 0x00 || ByteAt(bytes, at + 1) == 0xFF ||
            (ByteAt(bytes, at + 1) >= 0xD0 && ByteAt(bytes, at + 1) <= 0xD7))) {
      ++at;
    }
    if (at + 1 >= bytes.size()) return CutShort();
    const uint32_t marker = ByteAt(bytes, at + 1);
    if (marker == 0xD9) return orientation;
    at += 2;
    if (marker == 0x01 || marker == 0xD8) continue;
    if (bytes.size() - at < 2) return CutShort();
    const size_t length = ByteAt(bytes, at) << 8 | ByteAt(bytes, at + 1);
    if (length < 2) return absl::DataLossError(absl::StrCat("the file is damaged at byte ", at));
    if (length > bytes.size() - at) return CutShort();
    const std::string_view segment = bytes.substr(at + 2, length - 2);
    if (marker == 0xE1 && segment.substr(0, kExif.size()) == kExif) {
      orientation = Orientation(segment.substr(kExif.size()));
    }
    at += length;
  }
}

struct Header {
  int width = 0;  // as stored
  int height = 0;
  int orientation = 1;

  bool is_turned() const { return ExchangesSides(orientation); }
};

absl::StatusOr<Header> ReadHeader(std::string_view bytes) {
  Header header;
  const bool is_png = bytes.substr(0, kPngSignature.size()) == kPngSignature;
  if (!is_png && bytes.substr(0, 3) != "\xFF\xD8\xFF") {
    return absl::InvalidArgumentError("the file is neither a PNG nor a JPEG image");
  }
  if (bytes.size() > kMaxPictureBytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the file has ", bytes.size(), " bytes; at most ", kMaxPictureBytes, " are read"));
  }
  ASSIGN_OR_RETURN(header.orientation, is_png ? CheckPng(bytes) : CheckJpeg(bytes));
  int channels = 0;
  const auto* data = reinterpret_cast<const stbi_uc*>(bytes.data());
  if (stbi_info_from_memory(data, static_cast<int>(bytes.size()), &header.width, &header.height, &channels) == 0) {
    const std::string_view reason = stbi_failure_reason();
    return absl::Status(reason == "too large" ? absl::StatusCode::kResourceExhausted : absl::StatusCode::kDataLoss,
                        absl::StrCat("the file's header cannot be read: ", std::string(reason)));
  }
  if (header.width > kMaxPictureSide || header.height > kMaxPictureSide ||
      int64_t{header.width} * header.height > kMaxPicturePixels) {
    return absl::ResourceExhaustedError(absl::StrCat("the image has ", header.width, "x", header.height,
                                                     " pixels; valid are sides of at most ", kMaxPictureSide, " and ",
                                                     kMaxPicturePixels, " pixels"));
  }
  return header;
}

using RgbaPixels = std::unique_ptr<stbi_uc, decltype(&std::free)>;

// Pixels as stored, four bytes each.
absl::StatusOr<RgbaPixels> StoredPixels(std::string_view bytes, const Header& header) {
  int width = 0, height = 0, channels = 0;
  const auto* data = reinterpret_cast<const stbi_uc*>(bytes.data());
  RgbaPixels rgba(stbi_load_from_memory(data, static_cast<int>(bytes.size()), &width, &height, &channels, 4),
                  &std::free);
  if (rgba == nullptr || width != header.width || height != header.height) {
    return absl::DataLossError(absl::StrCat("the image cannot be decoded: ", stbi_failure_reason()));
  }
  return rgba;
}

}  // namespace

absl::StatusOr<std::string> ReadPictureFile(const std::string& path) {
  ASSIGN_OR_RETURN(const base::ReadOnlyFile file, base::ReadOnlyFile::Open(path, path));
  if (file.size() > kMaxPictureBytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat(path, ": the file has ", file.size(), " bytes; at most ", kMaxPictureBytes, " are read"));
  }
  std::string bytes(file.size(), '\0');
  RETURN_IF_ERROR(file.Read(0, std::as_writable_bytes(std::span(bytes.data(), bytes.size()))));
  return bytes;
}

absl::StatusOr<PictureSize> InspectPicture(std::string_view bytes) {
  ASSIGN_OR_RETURN(const Header header, ReadHeader(bytes));
  RETURN_IF_ERROR(StoredPixels(bytes, header).status());
  if (header.is_turned()) return PictureSize{header.height, header.width};
  return PictureSize{header.width, header.height};
}

absl::StatusOr<Frames> DecodePicture(std::string_view bytes) {
  ASSIGN_OR_RETURN(const Header header, ReadHeader(bytes));
  ASSIGN_OR_RETURN(const RgbaPixels rgba, StoredPixels(bytes, header));
  Frames image;
  image.width = header.is_turned() ? header.height : header.width;
  image.height = header.is_turned() ? header.width : header.height;
  image.bytes.resize(size_t{3} * image.width * image.height);
  uint8_t* out = image.bytes.data();
  for (int y = 0; y < image.height; ++y) {
    for (int x = 0; x < image.width; ++x) {
      const stbi_uc* pixel = rgba.get() + 4 * StoredIndex(header.orientation, header.width, header.height, x, y);
      for (int c = 0; c < 3; ++c) *out++ = ValueOnWhite(pixel[c], pixel[3]);
    }
  }
  return image;
}

}  // namespace tessera::control
