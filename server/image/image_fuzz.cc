// Fuzz test: for any bytes, DecodeImage returns a picture of the size that it states, or an error. Parameters that
// parse are written and parsed again to the same values.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "server/image/image_file.h"
#include "server/metadata/parameters_text.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::StatusOr<tessera::server::DecodedImage> decoded =
      tessera::server::DecodeImage(std::string_view(reinterpret_cast<const char*>(data), size));
  if (!decoded.ok()) return 0;
  const tessera::control::Frames& image = decoded->image;
  if (image.bytes.size() != size_t{3} * static_cast<size_t>(image.width) * static_cast<size_t>(image.height))
    std::abort();

  const absl::StatusOr<tessera::server::ImageParameters> parameters =
      tessera::server::ParseParameters(decoded->parameters);
  if (!parameters.ok()) return 0;
  const absl::StatusOr<std::string> text = tessera::server::FormatParameters(*parameters);
  if (!text.ok()) return 0;
  const absl::StatusOr<tessera::server::ImageParameters> again = tessera::server::ParseParameters(*text);
  if (!again.ok()) std::abort();
  // Only the first digits of a digest are written.
  if (again->prompt != parameters->prompt || again->negative_prompt != parameters->negative_prompt ||
      again->options != parameters->options || again->extra != parameters->extra || again->seed != parameters->seed) {
    std::abort();
  }
  return 0;
}
