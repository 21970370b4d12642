// Determines which configuration changes a running server applies on reload, and which need a restart.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/config/server_config.h"

namespace tessera::server {

struct ConfigChange {
  ServerConfig config;                     // the configuration after the reload
  std::vector<std::string> changed;        // "limits.steps_per_image: 1000 -> 500"
  std::vector<std::string> needs_restart;  // names of settings whose changes were not applied
};

// Applies keys_file, allow_anonymous, groups, drain_time, picture_hosts, input_check and the limits on accepted jobs;
// all other settings keep their values. INVALID_ARGUMENT if the combination is invalid, such as listeners beyond
// loopback that would lose their keys. Pure.
absl::StatusOr<ConfigChange> ChangeOf(const ServerConfig& now, const ServerConfig& wanted);

}  // namespace tessera::server
