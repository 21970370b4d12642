// Pictures that the user of this machine names, to train on: PNG and JPEG files of the user's own folders, read with
// stb_image. Pictures from anyone else go through server/image instead. Pure functions but for ReadPictureFile; they
// may be called from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "control/image.h"

namespace tessera::control {

inline constexpr size_t kMaxPictureBytes = size_t{256} << 20;
inline constexpr int kMaxPictureSide = 16384;
inline constexpr int64_t kMaxPicturePixels = int64_t{1} << 27;

struct PictureSize {
  int width = 0;  // as the picture is to be seen: a camera's turn is applied
  int height = 0;

  bool operator==(const PictureSize&) const = default;
};

// The bytes of a file. NotFound, PermissionDenied or FailedPrecondition as the file system says, ResourceExhausted for
// one of more than kMaxPictureBytes; errors begin with the path.
absl::StatusOr<std::string> ReadPictureFile(const std::string& path);

// Checks a picture as far as DecodePicture does, all pixels included. InvalidArgument: it is neither PNG nor JPEG.
// ResourceExhausted: its sides or its pixels are beyond the limits above. DataLoss: it is cut short, it is damaged by
// the check sums that PNG has, or its pixels cannot be decoded.
absl::StatusOr<PictureSize> InspectPicture(std::string_view bytes);

// The pixels, eight bits each, turned as the camera says; what is transparent lies on white. Errors as above.
absl::StatusOr<Image> DecodePicture(std::string_view bytes);

}  // namespace tessera::control
