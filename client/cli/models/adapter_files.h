// Reads adapters that are named by file, as on the command line without a server.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "control/parameters/adapter_use.h"
#include "server/api/prompt_tags.h"
#include "server/api/request_values.h"

namespace tessera::client {

// Returns the names by which tags in the prompt may name adapters given by file.
server::AdapterNames AdapterNamesOf(const std::vector<server::AdapterRequest>& adapters);

// Replaces each adapter's name, the path of its file or PEFT folder, with the file's name, and adds its absolute path
// and its digest. The whole file is read. INVALID_ARGUMENT for two files with the same name and for a file that is not
// an adapter, with the name; other errors as in base::ReadOnlyFile.
absl::Status OpenAdapterFiles(std::vector<control::AdapterUse>& adapters);

// Finds, by their digests, the files at these paths with which an image was made. NOT_FOUND names the first adapter
// without a file; INVALID_ARGUMENT names a file that is none of the adapters.
absl::Status FindAdapterFiles(const std::vector<std::string>& paths, std::vector<control::AdapterUse>& adapters);

}  // namespace tessera::client
