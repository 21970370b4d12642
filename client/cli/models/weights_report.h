// Reports what a file of weights is, for `tessera inspect`: which parts it holds, how they are stored, and where the
// other components of its model are or which option names them.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace tessera::client {

// Prints the report, as text or as one JSON object. A file that is no model is no error: its problem is a line of the
// report. Returns the errors of a file that cannot be read.
absl::Status ReportWeights(const std::string& path, bool json);

}  // namespace tessera::client
