// Lets ranks that write or read files together agree on one result.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "parallel/communicator.h"

namespace tessera::runtime {

// Returns every rank's text, by rank. Collective; the communicator is of host memory.
std::vector<std::string> GatherTexts(const std::string& text, parallel::Communicator& ranks);

// Returns OK if `status` is OK on every rank; otherwise all ranks return the error of the lowest rank that has one.
// Collective.
absl::Status Agree(const absl::Status& status, parallel::Communicator& ranks);

}  // namespace tessera::runtime
