// The parameters of an image as the format of its file can carry them. Only JPEG has a bound that prompts exceed.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/image/image_file.h"
#include "server/image/parameters_text.h"

namespace tessera::server {

// The extra pair of parameters whose prompts are not whole; its value names them.
inline constexpr char kShortenedKey[] = "Shortened";

struct FittedParameters {
  std::string text;                   // which CheckEncodable accepts
  std::vector<std::string> warnings;  // sentences for the user
};

// The text of FormatParameters; where it does not fit, with the longest beginnings of the prompts that do, all other
// parameters, and the pair kShortenedKey. The error of CheckEncodable where no prompt is short enough.
[[nodiscard]] absl::StatusOr<FittedParameters> FitParameters(const ImageParameters& parameters, ImageFormat format);

}  // namespace tessera::server
