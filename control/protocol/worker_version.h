// WorkerVersion returns what a worker program prints for --version. A front end accepts only workers of its own build.
#pragma once

#include <string>

namespace tessera::control {

// "tessera 0.1.0, control protocol 0123456789abcdef": the release, and a digest of the commands with their fields.
std::string WorkerVersion(const std::string& release = TESSERA_VERSION);

}  // namespace tessera::control
