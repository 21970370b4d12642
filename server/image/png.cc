// libpng reports errors by longjmp. Each operation is therefore a context, whose destructor frees everything, and a
// function that only calls libpng and has no objects with destructors.
#include <png.h>

#include <algorithm>
#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <optional>

#include "absl/strings/str_cat.h"
#include "base/macros/status_macros.h"
#include "server/image/character_sets.h"
#include "server/image/codecs.h"
#include "server/image/exif.h"

namespace tessera::server {
namespace {

constexpr char kParametersKeyword[] = "parameters";
constexpr size_t kMaxChunkBytes = size_t{8} << 20;
constexpr int kMaxTextChunks = 64;

struct PngError {
  char message[160] = "";
  char text_warning[160] = "";
};

[[noreturn]] void OnError(png_structp png, png_const_charp message) {
  auto* error = static_cast<PngError*>(png_get_error_ptr(png));
  std::snprintf(error->message, sizeof(error->message), "%s", message);
  png_longjmp(png, 1);
}

// libpng drops a text chunk that is too large or damaged with only a warning, which begins with the name of the chunk.
void OnWarning(png_structp png, png_const_charp message) {
  auto* error = static_cast<PngError*>(png_get_error_ptr(png));
  // Matches tEXt, zTXt and iTXt.
  if (std::string_view(message).find("Xt: ") == std::string_view::npos) return;
  std::snprintf(error->text_warning, sizeof(error->text_warning), "%s", message);
}

struct PngWriter {
  ~PngWriter() { png_destroy_write_struct(&png, &info); }

  png_structp png = nullptr;
  png_infop info = nullptr;
  PngError error;
  std::string out;
};

void AppendBytes(png_structp png, png_bytep data, size_t size) {
  static_cast<PngWriter*>(png_get_io_ptr(png))->out.append(reinterpret_cast<const char*>(data), size);
}

void FlushNothing(png_structp) {}

bool WriteAll(PngWriter& writer, const control::Frames& image, png_textp text) {
  if (setjmp(png_jmpbuf(writer.png)) != 0) return false;
  png_set_user_limits(writer.png, kMaxImageSide, kMaxImageSide);
  png_set_write_fn(writer.png, &writer, AppendBytes, FlushNothing);
  png_set_IHDR(writer.png, writer.info, static_cast<png_uint_32>(image.width), static_cast<png_uint_32>(image.height),
               8, image.channels == 4 ? PNG_COLOR_TYPE_RGB_ALPHA : PNG_COLOR_TYPE_RGB, PNG_INTERLACE_NONE,
               PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
  // Takes a quarter of the time of the default level 6 on smooth pictures, at the same size.
  constexpr int kCompressionLevel = 4;
  png_set_compression_level(writer.png, kCompressionLevel);
  if (text != nullptr) png_set_text(writer.png, writer.info, text, 1);
  png_write_info(writer.png, writer.info);
  for (int y = 0; y < image.height; ++y) {
    png_write_row(writer.png, image.bytes.data() + static_cast<size_t>(y) * image.row_bytes());
  }
  png_write_end(writer.png, nullptr);
  return true;
}

struct PngReader {
  ~PngReader() { png_destroy_read_struct(&png, &info, nullptr); }

  png_structp png = nullptr;
  png_infop info = nullptr;
  PngError error;
  std::string_view rest;
  bool is_source = false;  // keep alpha, and skip text and other chunks without a meaning for pixels
  control::Frames image;
  std::vector<png_bytep> rows;
};

void TakeBytes(png_structp png, png_bytep data, size_t size) {
  auto* reader = static_cast<PngReader*>(png_get_io_ptr(png));
  if (size > reader->rest.size()) png_error(png, "the file is cut short");
  std::memcpy(data, reader->rest.data(), size);
  reader->rest.remove_prefix(size);
}

// libpng allocates the length that a chunk states before it reads the chunk.
absl::Status CheckChunkLengths(std::string_view bytes) {
  constexpr size_t kSignatureBytes = 8;
  constexpr size_t kHeaderBytes = 8;
  constexpr size_t kChecksumBytes = 4;
  std::string_view rest = bytes.substr(std::min(kSignatureBytes, bytes.size()));
  while (rest.size() >= kHeaderBytes + kChecksumBytes) {
    uint32_t length = 0;
    for (int i = 0; i < 4; ++i) length = length << 8 | static_cast<uint8_t>(rest[i]);
    const std::string_view type = rest.substr(4, 4);
    if (length > rest.size() - kHeaderBytes - kChecksumBytes) break;
    if (type == "IEND") return absl::OkStatus();
    if (type != "IDAT" && length > kMaxChunkBytes) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "the PNG has a chunk of ", length, " bytes that are not pixels; at most ", kMaxChunkBytes, " are read"));
    }
    rest.remove_prefix(kHeaderBytes + length + kChecksumBytes);
  }
  return absl::DataLossError("the PNG is damaged: the file is cut short");
}

bool ReadHeader(PngReader& reader) {
  if (setjmp(png_jmpbuf(reader.png)) != 0) return false;
  // CheckDecodedSize checks sizes, and its message names the size.
  png_set_user_limits(reader.png, PNG_UINT_31_MAX, PNG_UINT_31_MAX);
  png_set_chunk_malloc_max(reader.png, kMaxChunkBytes);
  png_set_chunk_cache_max(reader.png, kMaxTextChunks);
  png_set_crc_action(reader.png, PNG_CRC_ERROR_QUIT, PNG_CRC_ERROR_QUIT);
  png_set_read_fn(reader.png, &reader, TakeBytes);
  // Names of 4 characters and a NUL, one after another.
  static constexpr png_byte kSkipped[] =
      "bKGD\0cHRM\0gAMA\0hIST\0oFFs\0pCAL\0pHYs\0sBIT\0sCAL\0sPLT\0tIME\0tEXt\0zTXt\0iTXt";
  if (reader.is_source) {
    png_set_keep_unknown_chunks(reader.png, PNG_HANDLE_CHUNK_NEVER, kSkipped, sizeof(kSkipped) / 5);
  }
  png_read_info(reader.png, reader.info);
  return true;
}

// Sets the format of rows to three bytes per pixel; a source with transparency gets four.
bool PrepareRows(PngReader& reader) {
  if (setjmp(png_jmpbuf(reader.png)) != 0) return false;
  png_set_expand(reader.png);
  png_set_scale_16(reader.png);
  png_set_gray_to_rgb(reader.png);
  if (!reader.is_source) png_set_strip_alpha(reader.png);
  png_set_interlace_handling(reader.png);
  png_read_update_info(reader.png, reader.info);
  reader.image.channels = png_get_channels(reader.png, reader.info);
  return (reader.image.channels == 3 || (reader.is_source && reader.image.channels == 4)) &&
         png_get_rowbytes(reader.png, reader.info) ==
             static_cast<size_t>(reader.image.channels) * png_get_image_width(reader.png, reader.info);
}

bool ReadRows(PngReader& reader) {
  if (setjmp(png_jmpbuf(reader.png)) != 0) return false;
  png_read_image(reader.png, reader.rows.data());
  png_read_end(reader.png, reader.info);
  return true;
}

absl::Status Damaged(const PngReader& reader) {
  return absl::DataLossError(absl::StrCat("the PNG is damaged: ", reader.error.message));
}

absl::StatusOr<std::string> FindParameters(const PngReader& reader) {
  if (reader.error.text_warning[0] != '\0') {
    return absl::DataLossError(absl::StrCat("the PNG's text cannot be read: ", reader.error.text_warning));
  }
  png_textp texts = nullptr;
  int count = 0;
  png_get_text(reader.png, reader.info, &texts, &count);
  for (int i = 0; i < count; ++i) {
    if (std::strcmp(texts[i].key, kParametersKeyword) != 0 || texts[i].text == nullptr) continue;
    const bool international =
        texts[i].compression == PNG_ITXT_COMPRESSION_NONE || texts[i].compression == PNG_ITXT_COMPRESSION_zTXt;
    const std::string_view text(texts[i].text, international ? texts[i].itxt_length : texts[i].text_length);
    if (!international) return Latin1ToUtf8(text);
    if (!IsUtf8(text)) return absl::DataLossError("the PNG is damaged: its parameters are not valid UTF-8");
    return std::string(text);
  }
  return std::string();
}

// Reads everything up to the pixels.
absl::Status Open(PngReader& reader, std::string_view bytes) {
  RETURN_IF_ERROR(CheckChunkLengths(bytes));
  reader.rest = bytes;
  reader.png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &reader.error, OnError, OnWarning);
  if (reader.png != nullptr) reader.info = png_create_info_struct(reader.png);
  if (reader.info == nullptr) return absl::ResourceExhaustedError("there is not enough memory to decode the image");
  if (!ReadHeader(reader)) return Damaged(reader);
  reader.image.width = static_cast<int>(png_get_image_width(reader.png, reader.info));
  reader.image.height = static_cast<int>(png_get_image_height(reader.png, reader.info));
  return absl::OkStatus();
}

// Reads the pixels and everything after them. The size must be checked before.
absl::Status ReadPixels(PngReader& reader) {
  if (!PrepareRows(reader)) return Damaged(reader);
  const size_t row_bytes = reader.image.row_bytes();
  reader.image.bytes.resize(row_bytes * reader.image.rows());
  reader.rows.resize(reader.image.rows());
  for (size_t y = 0; y < reader.rows.size(); ++y) reader.rows[y] = reader.image.bytes.data() + row_bytes * y;
  return ReadRows(reader) ? absl::OkStatus() : Damaged(reader);
}

// Returns the content of the first chunk `type` of a file whose chunk lengths were checked.
std::optional<std::string_view> FindChunk(std::string_view bytes, std::string_view type) {
  for (std::string_view rest = bytes.substr(8); rest.size() >= 12;) {
    uint32_t length = 0;
    for (int i = 0; i < 4; ++i) length = length << 8 | static_cast<uint8_t>(rest[i]);
    if (rest.substr(4, 4) == type) return rest.substr(8, length);
    if (rest.substr(4, 4) == "IEND") break;
    rest.remove_prefix(12 + size_t{length});
  }
  return std::nullopt;
}

// Returns the ICC profile, or an empty text. libpng drops a damaged one with only a warning.
absl::StatusOr<std::string> FindProfile(PngReader& reader, std::string_view bytes) {
  // Code points for BT.709 primaries, sRGB's transfer function, RGB, full range (ITU-T H.273).
  constexpr std::string_view kSrgbCodePoints("\x01\x0D\x00\x01", 4);
  const std::optional<std::string_view> code_points = FindChunk(bytes, "cICP");
  if (code_points && *code_points != kSrgbCodePoints) {
    return absl::InvalidArgumentError("the PNG has code points (cICP) of another colour space than sRGB");
  }
  if (!FindChunk(bytes, "iCCP")) return std::string();
  png_charp name = nullptr;
  int compression = 0;
  png_bytep profile = nullptr;
  png_uint_32 length = 0;
  if (png_get_iCCP(reader.png, reader.info, &name, &compression, &profile, &length) == 0) {
    return absl::InvalidArgumentError("the PNG's colour profile is damaged or does not fit its pixels");
  }
  return std::string(reinterpret_cast<const char*>(profile), length);
}

int FindOrientation(PngReader& reader) {
  png_bytep exif = nullptr;
  png_uint_32 length = 0;
  if (png_get_eXIf_1(reader.png, reader.info, &length, &exif) == 0) return 1;
  return ReadExifOrientation(std::string_view(reinterpret_cast<const char*>(exif), length));
}

}  // namespace

absl::StatusOr<std::string> EncodePng(const control::Frames& image, const std::string& parameters) {
  // Declared before the writer, because libpng may still point at it when the writer is destroyed.
  std::string value = parameters;
  png_text text = {};
  if (std::optional<std::string> latin1 = Utf8ToLatin1(parameters)) {
    value = *std::move(latin1);
    text.compression = PNG_TEXT_COMPRESSION_NONE;
    text.text_length = value.size();
  } else {
    text.compression = PNG_ITXT_COMPRESSION_NONE;
    text.itxt_length = value.size();
  }
  std::string key = kParametersKeyword;
  text.key = key.data();
  text.text = value.data();

  PngWriter writer;
  writer.png = png_create_write_struct(PNG_LIBPNG_VER_STRING, &writer.error, OnError, OnWarning);
  if (writer.png != nullptr) writer.info = png_create_info_struct(writer.png);
  if (writer.info == nullptr) return absl::ResourceExhaustedError("there is not enough memory to encode the image");
  if (!WriteAll(writer, image, parameters.empty() ? nullptr : &text)) {
    return absl::InternalError(absl::StrCat("the PNG could not be encoded: ", writer.error.message));
  }
  return std::move(writer.out);
}

absl::StatusOr<DecodedImage> DecodePng(std::string_view bytes) {
  PngReader reader;
  RETURN_IF_ERROR(Open(reader, bytes));
  RETURN_IF_ERROR(CheckDecodedSize(reader.image.width, reader.image.height, bytes.size()));
  RETURN_IF_ERROR(ReadPixels(reader));

  ASSIGN_OR_RETURN(std::string parameters, FindParameters(reader));
  return DecodedImage{
      .image = std::move(reader.image), .format = ImageFormat::kPng, .parameters = std::move(parameters)};
}

absl::StatusOr<SourceImage> DecodePngSource(std::string_view bytes, const SourceLimits& limits) {
  PngReader reader;
  reader.is_source = true;
  RETURN_IF_ERROR(Open(reader, bytes));
  RETURN_IF_ERROR(CheckSourceSize(reader.image.width, reader.image.height, bytes.size(), limits));
  const bool grey = (png_get_color_type(reader.png, reader.info) & PNG_COLOR_MASK_COLOR) == 0;
  ASSIGN_OR_RETURN(std::string profile, FindProfile(reader, bytes));
  RETURN_IF_ERROR(ReadPixels(reader));

  // The number of frames is acTL's first field (APNG); the picture itself is the first or the only one.
  const std::optional<std::string_view> animation = FindChunk(bytes, "acTL");
  const bool animated =
      animation && animation->size() == 8 && animation->substr(0, 4) > std::string_view("\0\0\0\1", 4);
  return SourceImage{.image = std::move(reader.image),
                     .format = ImageFormat::kPng,
                     .color = grey ? SourceColor::kGrey : SourceColor::kRgb,
                     .orientation = FindOrientation(reader),
                     .animated = animated,
                     .profile = std::move(profile)};
}

}  // namespace tessera::server
