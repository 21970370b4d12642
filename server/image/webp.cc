#include <webp/decode.h>
#include <webp/encode.h>
#include <webp/mux.h>

#include <memory>

#include "absl/strings/str_cat.h"
#include "base/macros/status_macros.h"
#include "server/image/codecs.h"
#include "server/image/exif.h"

namespace tessera::server {
namespace {

const uint8_t* Bytes(std::string_view text) { return reinterpret_cast<const uint8_t*>(text.data()); }

struct Picture {
  ~Picture() { WebPPictureFree(&value); }
  WebPPicture value;
};

struct FreeMux {
  void operator()(WebPMux* mux) const { WebPMuxDelete(mux); }
};
using Mux = std::unique_ptr<WebPMux, FreeMux>;

struct Assembled {
  ~Assembled() { WebPDataClear(&data); }
  WebPData data = {};
};

int AppendBytes(const uint8_t* data, size_t size, const WebPPicture* picture) {
  static_cast<std::string*>(picture->custom_ptr)->append(reinterpret_cast<const char*>(data), size);
  return 1;
}

absl::StatusOr<std::string> AddExif(const std::string& file, const std::string& exif) {
  const WebPData file_data = {Bytes(file), file.size()};
  const WebPData exif_data = {Bytes(exif), exif.size()};
  const Mux mux(WebPMuxCreate(&file_data, /*copy_data=*/0));
  Assembled assembled;
  if (mux == nullptr || WebPMuxSetChunk(mux.get(), "EXIF", &exif_data, /*copy_data=*/0) != WEBP_MUX_OK ||
      WebPMuxAssemble(mux.get(), &assembled.data) != WEBP_MUX_OK) {
    return absl::InternalError("the parameters could not be added to the WebP");
  }
  return std::string(reinterpret_cast<const char*>(assembled.data.bytes), assembled.data.size);
}

std::string_view View(const WebPData& data) { return {reinterpret_cast<const char*>(data.bytes), data.size}; }

std::string_view FindChunk(const WebPMux* mux, const char* name) {
  WebPData chunk = {};
  return WebPMuxGetChunk(mux, name, &chunk) == WEBP_MUX_OK ? View(chunk) : std::string_view();
}

// Decodes one bitstream into `to`, whose rows lie `stride` bytes apart and have `channels`
// bytes a pixel.
absl::Status DecodeBitstream(std::string_view bytes, int channels, uint8_t* to, size_t size, size_t stride) {
  const auto decode = channels == 4 ? WebPDecodeRGBAInto : WebPDecodeRGBInto;
  if (decode(Bytes(bytes), bytes.size(), to, size, static_cast<int>(stride)) == nullptr) {
    return absl::DataLossError("the WebP is damaged or cut short");
  }
  return absl::OkStatus();
}

struct FirstFrame {
  FirstFrame() = default;
  FirstFrame(const FirstFrame&) = delete;
  FirstFrame& operator=(const FirstFrame&) = delete;
  ~FirstFrame() { WebPDataClear(&info.bitstream); }
  WebPMuxFrameInfo info = {};
};

// Returns the canvas with the first frame of an animation on it; what the frame leaves free is transparent.
absl::StatusOr<control::Frames> DecodeFirstFrame(const WebPMux* mux, int width, int height) {
  const absl::Status damaged = absl::DataLossError("the WebP is damaged: its first frame cannot be read");
  FirstFrame frame;
  WebPBitstreamFeatures features;
  if (WebPMuxGetFrame(mux, 1, &frame.info) != WEBP_MUX_OK ||
      WebPGetFeatures(frame.info.bitstream.bytes, frame.info.bitstream.size, &features) != VP8_STATUS_OK) {
    return damaged;
  }
  const int left = frame.info.x_offset, top = frame.info.y_offset;
  if (left < 0 || top < 0 || features.width > width - left || features.height > height - top) return damaged;
  const bool whole = features.width == width && features.height == height;
  control::Frames canvas{
      .width = width, .height = height, .channels = whole && features.has_alpha == 0 ? 3 : 4, .bytes = {}};
  canvas.bytes.resize(canvas.row_bytes() * canvas.rows());
  const size_t start =
      static_cast<size_t>(top) * canvas.row_bytes() + static_cast<size_t>(left) * static_cast<size_t>(canvas.channels);
  RETURN_IF_ERROR(DecodeBitstream(View(frame.info.bitstream), canvas.channels, canvas.bytes.data() + start,
                                  canvas.bytes.size() - start, canvas.row_bytes()));
  return canvas;
}

}  // namespace

absl::StatusOr<std::string> EncodeWebp(const control::Frames& image, const std::string& exif, bool lossless,
                                       int quality) {
  constexpr int kDefaultLosslessLevel = 6;
  WebPConfig config;
  Picture picture;
  if (WebPConfigInit(&config) == 0 || WebPPictureInit(&picture.value) == 0 ||
      (lossless && WebPConfigLosslessPreset(&config, kDefaultLosslessLevel) == 0)) {
    return absl::InternalError("the WebP library has another version than its headers");
  }
  if (!lossless) {
    config.quality = static_cast<float>(quality);
    config.use_sharp_yuv = 1;
  }
  std::string file;
  picture.value.use_argb = 1;
  picture.value.width = image.width;
  picture.value.height = image.height;
  picture.value.writer = AppendBytes;
  picture.value.custom_ptr = &file;
  const bool alpha = image.channels == 4;
  if (alpha) config.exact = 1;  // keeps the colours of transparent pixels
  const auto import_pixels = alpha ? WebPPictureImportRGBA : WebPPictureImportRGB;
  if (import_pixels(&picture.value, image.bytes.data(), static_cast<int>(image.row_bytes())) == 0 ||
      WebPEncode(&config, &picture.value) == 0) {
    return absl::InternalError(
        absl::StrCat("the WebP could not be encoded: libwebp error ", static_cast<int>(picture.value.error_code)));
  }
  if (exif.empty()) return file;
  return AddExif(file, exif);
}

absl::StatusOr<DecodedImage> DecodeWebp(std::string_view bytes) {
  WebPBitstreamFeatures features;
  if (WebPGetFeatures(Bytes(bytes), bytes.size(), &features) != VP8_STATUS_OK) {
    return absl::DataLossError("the WebP is damaged: its header cannot be read");
  }
  if (features.has_animation != 0) return absl::InvalidArgumentError("the WebP is an animation; a still is needed");
  RETURN_IF_ERROR(CheckDecodedSize(features.width, features.height, bytes.size()));

  const WebPData file_data = {Bytes(bytes), bytes.size()};
  const Mux mux(WebPMuxCreate(&file_data, /*copy_data=*/0));
  if (mux == nullptr) return absl::DataLossError("the WebP is damaged: its chunks cannot be read");
  std::string parameters;
  WebPData exif = {};
  if (WebPMuxGetChunk(mux.get(), "EXIF", &exif) == WEBP_MUX_OK) {
    absl::StatusOr<std::string> comment =
        ReadExifUserComment(std::string_view(reinterpret_cast<const char*>(exif.bytes), exif.size));
    if (!comment.ok()) return comment.status();
    parameters = *std::move(comment);
  }

  control::Frames image;
  image.width = features.width;
  image.height = features.height;
  const size_t row_bytes = image.row_bytes();
  image.bytes.resize(row_bytes * image.rows());
  if (WebPDecodeRGBInto(Bytes(bytes), bytes.size(), image.bytes.data(), image.bytes.size(),
                        static_cast<int>(row_bytes)) == nullptr) {
    return absl::DataLossError("the WebP is damaged or cut short");
  }
  return DecodedImage{.image = std::move(image), .format = ImageFormat::kWebp, .parameters = std::move(parameters)};
}

absl::StatusOr<SourceImage> DecodeWebpSource(std::string_view bytes, const SourceLimits& limits) {
  WebPBitstreamFeatures features;
  if (WebPGetFeatures(Bytes(bytes), bytes.size(), &features) != VP8_STATUS_OK) {
    return absl::DataLossError("the WebP is damaged: its header cannot be read");
  }
  RETURN_IF_ERROR(CheckSourceSize(features.width, features.height, bytes.size(), limits));
  const WebPData file_data = {Bytes(bytes), bytes.size()};
  const Mux mux(WebPMuxCreate(&file_data, /*copy_data=*/0));
  if (mux == nullptr) return absl::DataLossError("the WebP is damaged: its chunks cannot be read");

  SourceImage source{.format = ImageFormat::kWebp};
  source.profile = FindChunk(mux.get(), "ICCP");
  source.orientation = ReadExifOrientation(FindChunk(mux.get(), "EXIF"));
  if (features.has_animation != 0) {
    int frames = 0;
    if (WebPMuxNumChunks(mux.get(), WEBP_CHUNK_ANMF, &frames) != WEBP_MUX_OK) frames = 0;
    source.animated = frames > 1;
    ASSIGN_OR_RETURN(source.image, DecodeFirstFrame(mux.get(), features.width, features.height));
    return source;
  }
  source.image.width = features.width;
  source.image.height = features.height;
  source.image.channels = features.has_alpha != 0 ? 4 : 3;
  source.image.bytes.resize(source.image.row_bytes() * source.image.rows());
  RETURN_IF_ERROR(DecodeBitstream(bytes, source.image.channels, source.image.bytes.data(), source.image.bytes.size(),
                                  source.image.row_bytes()));
  return source;
}

}  // namespace tessera::server
