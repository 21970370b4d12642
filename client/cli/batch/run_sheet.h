// The contact sheets of a run: its images in the order of the items, row by row, a failed item as one cell.
#pragma once

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "client/cli/batch/run_folder.h"

namespace tessera::client {

// That the sheets can have this name: FILE.png, .jpg or .webp. INVALID_ARGUMENT says what is wrong.
absl::Status CheckSheetName(const std::string& file);

// Writes all of `entries` to `file`, or, where one sheet does not hold them, to FILE-001.png and so on; how many files.
// Each is written whole or not at all. FAILED_PRECONDITION where an image is no longer what the run has written.
absl::StatusOr<int> WriteContactSheets(const std::string& file, const RunFolder& folder,
                                       const std::map<int64_t, RunEntry>& entries);

}  // namespace tessera::client
