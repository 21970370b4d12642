// What a caller is told when the disk under the job store fails: UNAVAILABLE, to be tried again. Other errors stay as
// they are.
#pragma once

#include "absl/status/status.h"

namespace tessera {

// `status` is one of JobStore's.
absl::Status StorageErrorForCaller(const absl::Status& status);

}  // namespace tessera
