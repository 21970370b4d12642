// Adapters that are named by their files, as on the command line without a server.
#pragma once

#include <boost/json.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "control/adapter_use.h"

namespace tessera::client {

// Each has the path of its file, or PEFT folder, as its name, and gets the name of the file, its absolute path and its
// digest; the file is read whole. INVALID_ARGUMENT, named, for two files of one name and for a file that is no adapter;
// else as base::ReadOnlyFile.
absl::Status OpenAdapterFiles(std::vector<control::AdapterUse>& adapters);

// Finds, among the files at these paths, those that a picture was made with, by their digests. NOT_FOUND names the
// first that is not among them, and INVALID_ARGUMENT a file that none is.
absl::Status FindAdapterFiles(const std::vector<std::string>& paths, std::vector<control::AdapterUse>& adapters);

// Their names, scales and digests.
boost::json::array AdaptersJson(const std::vector<control::AdapterUse>& adapters);

}  // namespace tessera::client
