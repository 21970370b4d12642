#include "server/pictures/decode_picture.h"

#include <new>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/macros/status_macros.h"
#include "server/image/source_image.h"
#include "server/pictures/color_profile.h"
#include "server/pictures/picture_pixels.h"

namespace tessera::server {
namespace {

absl::StatusOr<DecodedPicture> Decode(std::string_view bytes, const PictureLimits& limits) {
  if (bytes.size() > limits.file_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the picture has ", bytes.size(), " bytes; at most ", limits.file_bytes, " are read"));
  }
  ASSIGN_OR_RETURN(SourceImage source, DecodeSourceImage(bytes, {.side = limits.side, .pixels = limits.pixels}));
  DecodedPicture picture;
  picture.facts = {.format = source.format,
                   .animated = source.animated,
                   .had_alpha = source.color != SourceColor::kCmyk && source.image.channels == 4,
                   .had_profile = !source.profile.empty()};
  if (!source.profile.empty()) {
    RETURN_IF_ERROR(ConvertToSrgb(source.profile, source.color, source.image));
  } else if (source.color == SourceColor::kCmyk) {
    ConvertInkToRgb(source.image);
  }
  picture.frames = Oriented(std::move(source.image), source.orientation);
  return picture;
}

}  // namespace

absl::StatusOr<DecodedPicture> DecodePicture(std::string_view bytes, const PictureLimits& limits) {
  try {
    return Decode(bytes, limits);
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("there is not enough memory to decode the picture");
  }
}

}  // namespace tessera::server
