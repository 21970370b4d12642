// Reads the pictures of a command that a server makes the images of.
#pragma once

#include "absl/status/status.h"
#include "client/cli/models/picture_options.h"

namespace tessera::server {
struct ImageRequest;
}

namespace tessera::client {

// Adds the pictures' files and their strength to a request. A mask without transparency, which the server refuses,
// becomes transparent where it is white. Errors begin with `image` or `mask`: those of reading a file;
// INVALID_ARGUMENT or DATA_LOSS for a mask that is no picture or is damaged.
absl::Status AddSentPictures(const PictureOptions& options, const char* image, const char* mask,
                             server::ImageRequest& request);

}  // namespace tessera::client
