// What a job store holds, for those who are not its server. Nothing in it is changed.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "server/jobs/task_state.h"

namespace tessera {

struct StoreReport {
  bool in_use = false;                           // a server has it open
  std::array<int64_t, kTaskStates> images = {};  // by state
};

// NOT_FOUND where there is none; DATA_LOSS for a damaged one.
absl::StatusOr<StoreReport> InspectJobStore(const std::string& path);

}  // namespace tessera
