// Computes the digest of a model's files.
#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tessera::client {

// Returns 64 hexadecimal digits over the names and bytes of the model's index and of every file in the component
// folders next to it, without hidden files. Copies of a model have the same digest, whatever their paths and times.
// Reads every file completely; an error of `proceed`, which is called every few megabytes, stops it. Other errors name
// the file.
absl::StatusOr<std::string> DigestOfModelFiles(const std::string& folder, const std::function<absl::Status()>& proceed);

}  // namespace tessera::client
