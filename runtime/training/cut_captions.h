// Which captions a model cuts, from its tokenizers alone, for `tessera train --dry-run`.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace tessera::runtime {

// `captions` has the path of a picture and a caption of it in turn, each with a NUL at its end. The warning that the
// run gives when it encodes them (control::CutCaptionsText); empty where none is cut. InvalidArgument for a caption
// that the model does not take, by its picture; errors of reading the model's configuration and tokenizers.
absl::StatusOr<std::string> FindCutCaptions(const std::string& model, std::string_view captions);

}  // namespace tessera::runtime
