// What a worker program prints with --version, by which a front end recognises a worker of its own build.
#pragma once

#include <string>

namespace tessera::control {

// "tessera 0.1.0, control protocol 0123456789abcdef": the release, and a digest of the commands with their fields.
std::string WorkerVersion(const std::string& release = TESSERA_VERSION);

}  // namespace tessera::control
