#include "client/cli/remote/sent_pictures.h"

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/macros/status_macros.h"
#include "client/cli/option_text.h"
#include "control/pictures/mask.h"
#include "control/pictures/picture.h"
#include "control/pictures/picture_frames.h"
#include "server/api/request_values.h"
#include "server/image/image_file.h"
#include "server/pictures/decode_picture.h"

namespace tessera::client {
namespace {

absl::Status About(const char* name, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(name, ": ", std::string(status.message())));
}

absl::StatusOr<std::string> WithTransparency(std::string file) {
  ASSIGN_OR_RETURN(const server::DecodedPicture decoded, server::DecodePicture(file, {}));
  if (decoded.frames.channels == 4) return file;
  ASSIGN_OR_RETURN(const control::Frames gray, control::ToGray(decoded.frames));
  control::Frames mask{.width = gray.width, .height = gray.height, .channels = 4};
  for (const uint8_t value : gray.bytes) {
    mask.bytes.insert(mask.bytes.end(), {0, 0, 0, static_cast<uint8_t>(255 - value)});
  }
  return server::EncodeImage(mask, server::ImageFormat::kPng, {});
}

}  // namespace

absl::Status AddSentPictures(const PictureOptions& options, const char* image, const char* mask,
                             server::ImageRequest& request) {
  for (const std::string& path : options.images) {
    absl::StatusOr<std::string> file = control::ReadPictureFile(path);
    if (!file.ok()) return About(image, file.status());
    request.images.push_back({.data = *std::move(file)});
  }
  if (!options.mask.empty()) {
    absl::StatusOr<std::string> file = control::ReadPictureFile(options.mask);
    if (file.ok()) file = WithTransparency(*std::move(file));
    if (!file.ok()) return About(mask, file.status());
    request.mask.push_back({.data = *std::move(file)});
  }
  if (options.strength.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(request.strength, ParseNumber("strength", options.strength));
  return absl::OkStatus();
}

}  // namespace tessera::client
