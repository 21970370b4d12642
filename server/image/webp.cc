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

}  // namespace tessera::server
