#include "tests/support/picture_of.h"

#include "absl/strings/str_cat.h"
#include "server/image/image_file.h"
#include "server/metadata/parameters_text.h"

namespace tessera {

std::string PictureOf(const std::string& file) {
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
