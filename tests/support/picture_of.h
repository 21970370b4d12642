// Compares images independently of the layout that generated them.
#pragma once

#include <string>

#include "absl/strings/str_cat.h"
#include "server/image/image_file.h"
#include "server/image/parameters_text.h"

namespace tessera {

// Returns the pixels and parameters of an image file without its layout. Returns `file` unchanged if it is not an
// image.
inline std::string PictureOf(const std::string& file) {
  const absl::StatusOr<server::DecodedImage> decoded = server::DecodeImage(file);
  if (!decoded.ok()) return file;
  absl::StatusOr<server::ImageParameters> parameters = server::ParseParameters(decoded->parameters);
  if (!parameters.ok()) return file;
  parameters->layout.clear();
  const absl::StatusOr<std::string> text = server::FormatParameters(*parameters);
  if (!text.ok()) return file;
  return absl::StrCat(decoded->image.width, "x", decoded->image.height, " ", *text, " ",
                      std::string(decoded->image.bytes.begin(), decoded->image.bytes.end()));
}

}  // namespace tessera
