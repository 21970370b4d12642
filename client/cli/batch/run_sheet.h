// Draws the contact sheets of a run: its images in the order of the items, row by row, and one cell for each failed
// item.
#pragma once

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "client/cli/batch/run_folder.h"

namespace tessera::client {

// Checks that `file` is FILE.png, .jpg or .webp. INVALID_ARGUMENT says what is wrong.
absl::Status CheckSheetName(const std::string& file);

// Writes the images of `entries` to `file`, or to FILE-001.png and so on if one sheet does not hold them; returns the
// number of files. Each file is written completely or not at all. FAILED_PRECONDITION if an image has changed since the
// run wrote it.
absl::StatusOr<int> WriteContactSheets(const std::string& file, const RunFolder& folder,
                                       const std::map<int64_t, RunEntry>& entries);

}  // namespace tessera::client
