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
  jpeg_read_header(&decompress, TRUE);
  return true;
}

bool ReadRows(JpegReader& reader) {
  jpeg_decompress_struct& decompress = reader.decompress;
  if (setjmp(reader.error.jump) != 0) return false;
  decompress.out_color_space = JCS_RGB;
  decompress.dct_method = JDCT_ISLOW;
  jpeg_start_decompress(&decompress);
  const size_t row_bytes = size_t{3} * decompress.output_width;
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

absl::StatusOr<std::string> FindParameters(const JpegReader& reader) {
  for (const jpeg_marker_struct* marker = reader.decompress.marker_list; marker != nullptr; marker = marker->next) {
    const std::string_view data(reinterpret_cast<const char*>(marker->data), marker->data_length);
    if (marker->marker == kExifMarkerCode && data.substr(0, kExifMarker.size()) == kExifMarker) {
      return ReadExifUserComment(data);
    }
  }
  return std::string();
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
  ASSIGN_OR_RETURN(std::string parameters, FindParameters(reader));

  reader.image.width = static_cast<int>(width);
  reader.image.height = static_cast<int>(height);
  reader.image.bytes.resize(static_cast<size_t>(3 * width * height));
  if (!ReadRows(reader)) return Damaged(reader);
  return DecodedImage{
      .image = std::move(reader.image), .format = ImageFormat::kJpeg, .parameters = std::move(parameters)};
}

}  // namespace tessera::server
