// Parses an image size in the form WIDTHxHEIGHT.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tessera::server {

struct PictureSize {
  int32_t width = 0;  // pixels
  int32_t height = 0;

  bool operator==(const PictureSize&) const = default;
};

// INVALID_ARGUMENT with the text and what is valid: sides of 1 to 65536 pixels, such as "1024x768".
absl::StatusOr<PictureSize> ParsePictureSize(absl::string_view text);

}  // namespace tessera::server
