// FitParameters makes the parameters of an image fit the format of its file. Only JPEG has a bound that prompts exceed.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/image/image_format.h"

namespace tessera::server {

struct ImageParameters;

// The extra pair of parameters whose prompts were shortened; its value names them.
inline constexpr char kShortenedKey[] = "Shortened";

struct FittedParameters {
  std::string text;                   // accepted by CheckEncodable
  std::vector<std::string> warnings;  // sentences for the user
};

// Returns the text of FormatParameters. If it does not fit, the prompts are cut to the longest beginnings that do, and
// the pair kShortenedKey is added; all other parameters stay. Returns the error of CheckEncodable if no prompt is short
// enough.
[[nodiscard]] absl::StatusOr<FittedParameters> FitParameters(const ImageParameters& parameters, ImageFormat format);

}  // namespace tessera::server
