#include "control/parameters/picture_use.h"

#include "base/fields/field_error.h"

namespace tessera::control {

absl::Status CheckRules(const PictureUse& picture) {
  if (picture.file.empty() || picture.file.front() == '/') return absl::OkStatus();
  return base::ErrorOfField("file", " is not an absolute path");
}

}  // namespace tessera::control
