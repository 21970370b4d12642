// Reports what a file of weights is, for `tessera inspect`: which parts it holds, how they are stored, and where the
// other components of its model are or which option names them.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace tessera::client {

// Prints the report, as text or as one JSON object. Returns the error of a file that cannot be read, and after the
// report that of a file of which neither a part nor an adapter can be used (models::CheckUsable). Of a file with a
// usable part, why it is no whole model is a line of the report and no error.
absl::Status ReportWeights(const std::string& path, bool json);

}  // namespace tessera::client
