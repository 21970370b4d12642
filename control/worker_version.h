// What a worker program says of itself with --version, so that its front end can be held against it.
#pragma once

#include <string>

namespace tessera::control {

// "tessera 0.1.0, control protocol 0123456789abcdef": the release, and a digest of control.proto and
// job_parameters.proto.
std::string WorkerVersion(const std::string& release = TESSERA_VERSION);

}  // namespace tessera::control
