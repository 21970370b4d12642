// The digest of a model's files, to the byte.
#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tessera::client {

// 64 hexadecimal digits: of the names and bytes of the model's index and of every file in the folders beside it, which
// are those of its components; hidden ones are left out. It is the same for two copies of one model, whatever their
// paths and times are. Reads everything from end to end; an error of `proceed`, which is asked every few megabytes,
// ends it. Other errors name the file.
absl::StatusOr<std::string> DigestOfModelFiles(const std::string& folder, const std::function<absl::Status()>& proceed);

}  // namespace tessera::client
