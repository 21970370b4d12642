// libjpeg reports errors by longjmp. Each operation is therefore a context, whose destructor frees everything, and a
// function that only calls libjpeg and has no objects with destructors.
#include <cstdio>
// jpeglib.h needs FILE and size_t declared before it.
#include <jpeglib.h>

#include <csetjmp>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "base/macros/status_macros.h"
#include "server/image/codecs.h"
#include "server/image/exif.h"

namespace tessera::server {
namespace {

constexpr int kExifMarkerCode = JPEG_APP0 + 1;
constexpr int kProfileMarkerCode = JPEG_APP0 + 2;
constexpr std::string_view kProfileMarker("ICC_PROFILE\0", 12);
// A progressive file needs about ten scans. Without a bound, a short file could make the decoder pass over the picture
// many times.
constexpr int kMaxScans = 100;

struct JpegError {
  jpeg_error_mgr manager;  // must be first: libjpeg returns a pointer to it
  jmp_buf jump;
  char message[JMSG_LENGTH_MAX] = "";
};

[[noreturn]] void OnError(j_common_ptr common) {
  auto* error = reinterpret_cast<JpegError*>(common->err);
  error->manager.format_message(common, error->message);
  longjmp(error->jump, 1);
}

// libjpeg treats damaged data as a warning and continues with grey; here it is an error. Positive levels are traces.
void OnMessage(j_common_ptr common, int level) {
  if (level < 0) OnError(common);
}

void UseErrorHandler(JpegError& error) {
  jpeg_std_error(&error.manager);
  error.manager.error_exit = OnError;
  error.manager.emit_message = OnMessage;
}

struct JpegWriter {
  JpegWriter() {
    UseErrorHandler(error);
    compress.err = &error.manager;
  }
  ~JpegWriter() {
    jpeg_destroy_compress(&compress);
    std::free(buffer);
  }

  jpeg_compress_struct compress = {};
  JpegError error;
  unsigned char* buffer = nullptr;
  unsigned long size = 0;  // NOLINT(google-runtime-int): the type of jpeg_mem_dest
};

bool WriteAll(JpegWriter& writer, const control::Frames& image, const std::string& exif_segment, int quality) {
  jpeg_compress_struct& compress = writer.compress;
  if (setjmp(writer.error.jump) != 0) return false;
  jpeg_create_compress(&compress);
  jpeg_mem_dest(&compress, &writer.buffer, &writer.size);
  compress.image_width = static_cast<JDIMENSION>(image.width);
  compress.image_height = static_cast<JDIMENSION>(image.height);
  compress.input_components = 3;
  compress.in_color_space = JCS_RGB;
  jpeg_set_defaults(&compress);
  jpeg_set_quality(&compress, quality, TRUE);
  compress.dct_method = JDCT_ISLOW;
  compress.optimize_coding = TRUE;
  for (int i = 0; i < compress.num_components; ++i) {
    compress.comp_info[i].h_samp_factor = 1;
    compress.comp_info[i].v_samp_factor = 1;
  }
  jpeg_start_compress(&compress, TRUE);
  if (!exif_segment.empty()) {
    jpeg_write_marker(&compress, kExifMarkerCode, reinterpret_cast<const JOCTET*>(exif_segment.data()),
                      static_cast<unsigned>(exif_segment.size()));
  }
  while (compress.next_scanline < compress.image_height) {
    auto* row = const_cast<JSAMPLE*>(image.bytes.data() + compress.next_scanline * image.row_bytes());
    jpeg_write_scanlines(&compress, &row, 1);
  }
  jpeg_finish_compress(&compress);
  return true;
}

struct JpegReader {
  JpegReader() {
    UseErrorHandler(error);
    decompress.err = &error.manager;
  }
  ~JpegReader() { jpeg_destroy_decompress(&decompress); }

  jpeg_decompress_struct decompress = {};
  jpeg_progress_mgr progress = {};
  JpegError error;
  bool is_source = false;  // keep the colour profile and CMYK
  control::Frames image;
};

void LimitScans(j_common_ptr common) {
  auto* decompress = reinterpret_cast<j_decompress_ptr>(common);
  if (decompress->input_scan_number <= kMaxScans) return;
  auto* error = reinterpret_cast<JpegError*>(common->err);
  std::snprintf(error->message, sizeof(error->message), "it has more than %d scans", kMaxScans);
  longjmp(error->jump, 1);
}

bool ReadHeader(JpegReader& reader, std::string_view bytes) {
  jpeg_decompress_struct& decompress = reader.decompress;
  if (setjmp(reader.error.jump) != 0) return false;
  jpeg_create_decompress(&decompress);
  reader.progress.progress_monitor = LimitScans;
  decompress.progress = &reader.progress;
  jpeg_mem_src(&decompress, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
  jpeg_save_markers(&decompress, kExifMarkerCode, 0xFFFF);
  if (reader.is_source) jpeg_save_markers(&decompress, kProfileMarkerCode, 0xFFFF);
  jpeg_read_header(&decompress, TRUE);
  return true;
}

bool ReadRows(JpegReader& reader) {
  jpeg_decompress_struct& decompress = reader.decompress;
  if (setjmp(reader.error.jump) != 0) return false;
  decompress.out_color_space = reader.image.channels == 4 ? JCS_CMYK : JCS_RGB;
  decompress.dct_method = JDCT_ISLOW;
  jpeg_start_decompress(&decompress);
  const size_t row_bytes = reader.image.row_bytes();
  while (decompress.output_scanline < decompress.output_height) {
    JSAMPLE* row = reader.image.bytes.data() + decompress.output_scanline * row_bytes;
    jpeg_read_scanlines(&decompress, &row, 1);
  }
  jpeg_finish_decompress(&decompress);
  return true;
}

absl::Status Damaged(const JpegReader& reader) {
  return absl::DataLossError(absl::StrCat("the JPEG is damaged: ", reader.error.message));
}

// Returns the content of the first EXIF marker, or an empty text.
std::string_view FindExif(const JpegReader& reader) {
  for (const jpeg_marker_struct* marker = reader.decompress.marker_list; marker != nullptr; marker = marker->next) {
    const std::string_view data(reinterpret_cast<const char*>(marker->data), marker->data_length);
    if (marker->marker == kExifMarkerCode && data.substr(0, kExifMarker.size()) == kExifMarker) return data;
  }
  return {};
}

// Returns false on an error of the library; `*profile` stays null without a whole profile, else free() is due.
bool ReadProfile(JpegReader& reader, JOCTET** profile, unsigned* length) {
  if (setjmp(reader.error.jump) != 0) return false;
  jpeg_read_icc_profile(&reader.decompress, profile, length);
  return true;
}

absl::StatusOr<std::string> FindProfile(JpegReader& reader) {
  bool has_profile = false;
  for (const jpeg_marker_struct* marker = reader.decompress.marker_list; marker != nullptr; marker = marker->next) {
    const std::string_view data(reinterpret_cast<const char*>(marker->data), marker->data_length);
    has_profile |= marker->marker == kProfileMarkerCode && data.substr(0, kProfileMarker.size()) == kProfileMarker;
  }
  if (!has_profile) return std::string();
  JOCTET* bytes = nullptr;
  unsigned length = 0;
  if (!ReadProfile(reader, &bytes, &length) || bytes == nullptr) {
    return absl::InvalidArgumentError("the JPEG's colour profile is damaged");
  }
  std::string profile(reinterpret_cast<const char*>(bytes), length);
  std::free(bytes);
  return profile;
}

// Resizes the image for ReadRows.
void PrepareImage(JpegReader& reader, int channels) {
  reader.image.width = static_cast<int>(reader.decompress.image_width);
  reader.image.height = static_cast<int>(reader.decompress.image_height);
  reader.image.channels = channels;
  reader.image.bytes.resize(reader.image.row_bytes() * reader.image.rows());
}

}  // namespace

absl::StatusOr<std::string> EncodeJpeg(const control::Frames& image, const std::string& exif, int quality) {
  const std::string exif_segment = exif.empty() ? "" : absl::StrCat(std::string(kExifMarker), exif);
  JpegWriter writer;
  if (!WriteAll(writer, image, exif_segment, quality)) {
    return absl::InternalError(absl::StrCat("the JPEG could not be encoded: ", writer.error.message));
  }
  return std::string(reinterpret_cast<const char*>(writer.buffer), writer.size);
}

absl::StatusOr<DecodedImage> DecodeJpeg(std::string_view bytes) {
  JpegReader reader;
  if (!ReadHeader(reader, bytes)) return Damaged(reader);
  const auto width = static_cast<int64_t>(reader.decompress.image_width);
  const auto height = static_cast<int64_t>(reader.decompress.image_height);
  RETURN_IF_ERROR(CheckDecodedSize(width, height, bytes.size()));
  if (reader.decompress.num_components != 1 && reader.decompress.num_components != 3) {
    return absl::InvalidArgumentError(absl::StrCat("the JPEG has ", reader.decompress.num_components,
                                                   " colour components; 1 (grey) and 3 (colour) are supported"));
  }
  std::string parameters;
  if (const std::string_view exif = FindExif(reader); !exif.empty()) {
    ASSIGN_OR_RETURN(parameters, ReadExifUserComment(exif));
  }

  PrepareImage(reader, 3);
  if (!ReadRows(reader)) return Damaged(reader);
  return DecodedImage{
      .image = std::move(reader.image), .format = ImageFormat::kJpeg, .parameters = std::move(parameters)};
}

absl::StatusOr<SourceImage> DecodeJpegSource(std::string_view bytes, const SourceLimits& limits) {
  JpegReader reader;
  reader.is_source = true;
  if (!ReadHeader(reader, bytes)) return Damaged(reader);
  const jpeg_decompress_struct& header = reader.decompress;
  RETURN_IF_ERROR(CheckSourceSize(header.image_width, header.image_height, bytes.size(), limits));
  if (header.num_components != 1 && header.num_components != 3 && header.num_components != 4) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the JPEG has ", header.num_components, " colour components; 1 (grey), 3 (colour) and 4 (CMYK) are supported"));
  }
  const bool cmyk = header.num_components == 4;
  const int orientation = ReadExifOrientation(FindExif(reader));  // the end of decoding frees the markers
  ASSIGN_OR_RETURN(std::string profile, FindProfile(reader));
  PrepareImage(reader, cmyk ? 4 : 3);
  if (!ReadRows(reader)) return Damaged(reader);
  // Programs store 255 for no ink, as Adobe's do, with and without its marker.
  if (cmyk) {
    for (uint8_t& value : reader.image.bytes) value = static_cast<uint8_t>(255 - value);
  }
  return SourceImage{
      .image = std::move(reader.image),
      .format = ImageFormat::kJpeg,
      .color = cmyk ? SourceColor::kCmyk : (header.num_components == 1 ? SourceColor::kGrey : SourceColor::kRgb),
      .orientation = orientation,
      .animated = false,
      .profile = std::move(profile)};
}

}  // namespace tessera::server
