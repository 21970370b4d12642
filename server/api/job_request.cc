#include "server/api/job_request.h"

#include "server/image/image_file.h"

namespace tessera::server {

absl::StatusOr<std::string> EncodeOutput(const control::Frames& image, const OutputOptions& output,
                                         const std::string& parameters) {
  EncodeOptions options = {.parameters = parameters, .webp_lossless = !output.quality.has_value()};
  options.quality = output.quality.value_or(options.quality);
  return EncodeImage(image, output.format, options);
}

}  // namespace tessera::server
