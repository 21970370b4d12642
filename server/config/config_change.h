// What a server that runs takes of a configuration that was written since, and what has to wait for its next start.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/config/server_config.h"

namespace tessera::server {

struct ConfigChange {
  ServerConfig config;                     // to go on with
  std::vector<std::string> changed;        // "limits.steps_per_image: 1000 -> 500"
  std::vector<std::string> needs_restart;  // names of settings that stay as they were
};

// Keys, groups, drain_time and the limits of what is accepted are taken, all else stays. INVALID_ARGUMENT where the two
// do not go together, such as listeners beyond loopback that would lose their keys. Pure.
absl::StatusOr<ConfigChange> ChangeOf(const ServerConfig& now, const ServerConfig& wanted);

}  // namespace tessera::server
