// Reads the fields of an item of a batch that name pictures by their files: `image`, `mask` and `strength`.
#pragma once

#include <boost/json/fwd.hpp>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cli/models/picture_options.h"

namespace tessera::client {

inline constexpr const char* kPictureFields[] = {"image", "mask", "strength"};

// Takes these fields out of the fields of an item; the others stay. `image` is a path or a list of paths, `mask` a path
// and `strength` a number. Relative paths are relative to `folder`; an empty one is the working directory.
// INVALID_ARGUMENT about a field.
absl::StatusOr<PictureOptions> TakePictures(boost::json::object& fields, const std::string& folder);

// Checks that the files of the pictures exist. INVALID_ARGUMENT names the field and the file.
absl::Status CheckPictureFiles(const PictureOptions& pictures);

}  // namespace tessera::client
