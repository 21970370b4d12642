// Reads PNG and JPEG pictures for training from the folders of this machine's user, with stb_image. Pictures from
// untrusted sources go through server/image instead. All functions except ReadPictureFile are pure, and all are
// thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tessera::control {

struct Frames;  // control/pictures/picture_frames.h

inline constexpr size_t kMaxPictureBytes = size_t{256} << 20;
inline constexpr int kMaxPictureSide = 16384;
inline constexpr int64_t kMaxPicturePixels = int64_t{1} << 27;

struct PictureSize {
  int width = 0;  // as displayed: the camera's orientation is applied
  int height = 0;

  bool operator==(const PictureSize&) const = default;
};

// Returns the bytes of a file. NotFound, PermissionDenied or FailedPrecondition depending on the file system's error,
// ResourceExhausted for a file of more than kMaxPictureBytes. Errors begin with the path.
absl::StatusOr<std::string> ReadPictureFile(const std::string& path);

// Checks a picture as DecodePicture does, including all pixels. InvalidArgument: it is neither PNG nor JPEG.
// ResourceExhausted: its sides or its number of pixels exceed the limits above. DataLoss: it is truncated, a PNG check
// sum does not match, or its pixels cannot be decoded.
absl::StatusOr<PictureSize> InspectPicture(std::string_view bytes);

// Returns the pixels, 8 bits a channel, with the camera's orientation applied and transparent parts on white. Errors as
// above.
absl::StatusOr<Frames> DecodePicture(std::string_view bytes);

}  // namespace tessera::control
