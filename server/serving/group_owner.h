// GroupOwner gives work to a group's runner and receives the results.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "control/host/device_memory.h"
#include "server/workers/step_loop.h"

namespace tessera::server {

class GroupOwner : public StepOwner {
 public:
  // `memory_budget` is that of the rank with the least memory; absent as in Loaded.
  virtual void OnReady(GroupId group, const std::optional<control::MemoryBudget>& memory_budget) = 0;
  // The group has died with all its tasks. `blameless`: no job is the cause, because the group was stopped for
  // untrustworthy results or was replaced.
  virtual void OnDied(GroupId group, const absl::Status& reason, bool blameless) = 0;
  // The group cannot start and takes no tasks until it is ready. It keeps trying.
  virtual void OnRefused(GroupId group) = 0;
};

}  // namespace tessera::server
