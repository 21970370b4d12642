// How ranks that write or read files together come to one answer.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "parallel/communicator.h"

namespace tessera::runtime {

// Every rank's text, by rank. Collective; the communicator is of host memory.
std::vector<std::string> GatherTexts(const std::string& text, parallel::Communicator& ranks);

// OK if every rank gives OK; else, on all of them, the error of the lowest rank that has one. Collective.
absl::Status Agree(const absl::Status& status, parallel::Communicator& ranks);

}  // namespace tessera::runtime
