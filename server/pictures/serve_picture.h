// The confined process's side of PictureDecoder: confines the process, then decodes one picture.
#pragma once

#include <string_view>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "server/pictures/decoded_picture.h"

namespace tessera::server {

using DecodeFunction = absl::FunctionRef<absl::StatusOr<DecodedPicture>(std::string_view, const PictureLimits&)>;

// Confines this process for pictures of at most `file_bytes` and `pixels`, both decimal as on the command line, then
// reads one file from descriptor 0, decodes it with `decode` and writes the result to descriptor 1 (picture_wire.h).
// Returns the exit code: 0 if a whole reply was written, also of an error. The process must have one thread.
[[nodiscard]] int ServePicture(const char* file_bytes, const char* pixels, DecodeFunction decode);

}  // namespace tessera::server
