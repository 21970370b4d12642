// FindCutCaptions finds the captions that a model cuts, using only its tokenizers, for `tessera train --dry-run`.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace tessera::runtime {

// `captions` has for each image its path, the number of pictures at which the model looks for it, and its caption, each
// terminated by NUL. Returns the warning that
// a run gives when it encodes them (control::CutCaptionsText), or an empty text if no caption is cut. InvalidArgument,
// naming the picture, for a caption that the model does not accept; also errors of reading the model's configuration
// and tokenizers.
absl::StatusOr<std::string> FindCutCaptions(const std::string& model, std::string_view captions);

}  // namespace tessera::runtime
