#include "control/worker_version.h"

#include "absl/strings/str_cat.h"

namespace tessera::control {

std::string WorkerVersion(const std::string& release) {
  return absl::StrCat("tessera ", release, ", control protocol ", TESSERA_CONTROL_PROTOCOL);
}

}  // namespace tessera::control
